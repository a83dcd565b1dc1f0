"use strict";
// Everything is readable without this script: it only copies, filters and unfolds. It never writes markup.
(function () {
  function copy(button) {
    var source = document.getElementById(button.dataset.copies);
    var done = function () { button.textContent = "Copied"; };
    var fallBack = function () {
      var range = document.createRange();
      range.selectNodeContents(source);
      var selection = window.getSelection();
      selection.removeAllRanges();
      selection.addRange(range);
      button.textContent = document.execCommand("copy") ? "Copied" : "Selected: press Ctrl+C";
    };
    if (navigator.clipboard) navigator.clipboard.writeText(source.textContent).then(done, fallBack);
    else fallBack();
  }

  document.querySelectorAll("button.copy").forEach(function (button) {
    button.hidden = false;
    button.addEventListener("click", function () { copy(button); });
  });

  function unfold() {
    var target = location.hash.length > 1 && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    for (var node = target; node; node = node.parentElement) if (node.tagName === "DETAILS") node.open = true;
    var own = target && target.querySelector(":scope > details");
    if (own) own.open = true;
    if (target) target.scrollIntoView();
  }
  window.addEventListener("hashchange", unfold);
  unfold();

  window.addEventListener("beforeprint", function () {
    document.querySelectorAll("details").forEach(function (fold) { fold.open = true; });
  });

  var form = document.querySelector("form[data-filter]");
  if (!form) return;
  var boxes = Array.from(form.querySelectorAll("input[type=checkbox]"));
  var rows = Array.from(document.querySelectorAll("[data-row]")).map(function (row) {
    return { row: row, kind: row.dataset.kind || row.className, text: null };
  });

  function filter() {
    var off = boxes.filter(function (box) { return !box.checked; }).map(function (box) { return box.value; });
    var wanted = form.elements.text.value.trim().toLowerCase();
    var hidden = 0;
    rows.forEach(function (entry) {
      if (wanted && entry.text === null) entry.text = entry.row.textContent.toLowerCase();
      entry.row.hidden = off.indexOf(entry.kind) >= 0 || (wanted !== "" && entry.text.indexOf(wanted) < 0);
      if (entry.row.hidden) hidden += 1;
    });
    form.querySelector("output").textContent = hidden ? hidden + " rows and cases hidden" : "";
  }
  form.addEventListener("input", filter);
  form.addEventListener("submit", function (event) { event.preventDefault(); });
  form.hidden = false;
  filter();
})();
