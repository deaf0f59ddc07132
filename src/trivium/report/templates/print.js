  // On paper nothing can be opened.
  let opened = [];
  addEventListener("beforeprint", function () {
    opened = Array.from(document.querySelectorAll("details:not([open])"));
    for (const part of opened) part.open = true;
  });
  addEventListener("afterprint", function () {
    for (const part of opened) part.open = false;
  });
