"""One figure of the paper beside ours."""

from dataclasses import dataclass
from typing import Any, Literal

# counted: follows from definitions; predicted: from the cost model; setting: what is done unless told otherwise
Kind = Literal["counted", "predicted", "setting"]


@dataclass(frozen=True)
class Figure:
    """paper: as it is printed there, in `unit`; `over` says that it is printed as a lower bound. ours: in the same
    unit. command: shows ours. note: what was assumed, or why ours is another."""

    section: str
    what: str
    paper: str
    ours: float
    unit: str = ""
    command: str = ""
    kind: Kind = "counted"
    over: bool = False
    note: str = ""

    @property
    def decimals(self) -> int:
        """That the paper prints."""
        return len(self.paper.partition(".")[2])

    @property
    def deviation(self) -> float:
        """Of ours from the paper's, as a fraction of the paper's."""
        return self.ours / float(self.paper) - 1

    @property
    def agrees(self) -> bool:
        """Ours rounds to what is printed, or lies beyond the printed bound."""
        if self.over:
            return self.ours > float(self.paper)
        return bool(abs(self.ours - float(self.paper)) <= 0.5 * 10**-self.decimals)

    @property
    def verdict(self) -> str:
        """ "=" for what agrees, otherwise by how much ours is more or less."""
        return "=" if self.agrees else f"{self.deviation:+.1%}"

    @property
    def printed(self) -> tuple[str, str]:
        """The paper's and ours with their unit; ours with one more digit where the paper rounds."""
        decimals = self.decimals if self.ours == int(self.ours) and not self.decimals else self.decimals + 1
        unit = f" {self.unit}" if self.unit else ""
        mine = f"{self.ours:,.{decimals}f}{unit}"
        return f"{'over ' if self.over else ''}{_grouped(self.paper)}{unit}", mine

    def tree(self) -> dict[str, Any]:
        """Plain data."""
        return {**vars(self), "agrees": self.agrees, "deviation": self.deviation}


def _grouped(number: str) -> str:
    whole, point, fraction = number.partition(".")
    return f"{int(whole):,}{point}{fraction}"
