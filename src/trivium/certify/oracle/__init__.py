"""The parts of a layer once more, in plain torch. They share no code with plan/layers/ and model/layers/."""
