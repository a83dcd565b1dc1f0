"use strict";
// The page is readable without this script. It only copies, filters and opens folds. It never writes markup.
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

  var form = document.querySelector("form[data-filter]");
  var address = new URLSearchParams(location.search);
  var boxes = form ? Array.from(form.querySelectorAll("input[type=checkbox]")) : [];
  var rows = form ? Array.from(document.querySelectorAll("[data-row]")).map(function (row) {
    return {
      row: row, of: document.getElementById(row.dataset.twin) || row, text: null,
      kinds: row.dataset.kind.split(" "), areas: row.dataset.area.split(" ")
    };
  }) : [];

  function filter() {
    var off = boxes.filter(function (box) { return !box.checked; }).map(function (box) { return box.value; });
    var area = form.elements.area.value;
    var wanted = form.elements.text.value.trim().toLowerCase();
    var hidden = 0;
    rows.forEach(function (entry) {
      if (wanted && entry.text === null) entry.text = (entry.row.textContent + entry.of.textContent).toLowerCase();
      entry.row.hidden = entry.kinds.every(function (kind) { return off.indexOf(kind) >= 0; })
        || (area !== "" && entry.areas.indexOf(area) < 0)
        || (wanted !== "" && entry.text.indexOf(wanted) < 0);
      if (entry.row.hidden) hidden += 1;
    });
    document.querySelectorAll("[data-group]").forEach(function (group) {
      group.hidden = !group.querySelector("[data-row]:not([hidden])");
    });
    form.querySelector("output").textContent = hidden ? hidden + " " + form.dataset.filter + " hidden" : "";
    return { hide: off.join(" "), area: area, text: wanted };
  }

  // The filter is in the query, before the fragment: links within the page keep it, and a copied address includes it.
  function remember(state) {
    Object.keys(state).forEach(function (name) {
      if (state[name]) address.set(name, state[name]); else address.delete(name);
    });
    var query = address.toString();
    try {
      history.replaceState(null, "", location.pathname + (query ? "?" + query : "") + location.hash);
    } catch (refused) { /* a sandboxed page may not change its address */ }
  }

  if (form) {
    var hide = (address.get("hide") || "").split(" ");
    boxes.forEach(function (box) { box.checked = hide.indexOf(box.value) < 0; });
    form.elements.area.value = address.get("area") || "";
    if (form.elements.area.selectedIndex < 0) form.elements.area.value = "";
    form.elements.text.value = address.get("text") || "";
    form.addEventListener("input", function () { remember(filter()); });
    form.addEventListener("reset", function () { setTimeout(function () { remember(filter()); }); });
    form.addEventListener("submit", function (event) { event.preventDefault(); });
    form.hidden = false;
    filter();
  }

  // Shows the target of a followed link, also where it is folded or filtered out.
  function reveal() {
    var target = location.hash.length > 1 && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (!target) return;
    for (var node = target; node; node = node.parentElement) {
      if (node.tagName === "DETAILS") node.open = true;
      if (node.hidden) node.hidden = false;
    }
    var own = target.querySelector(":scope > details, :scope > .more > td > details");
    if (own) own.open = true;
    target.scrollIntoView();
  }
  window.addEventListener("hashchange", reveal);
  reveal();

  window.addEventListener("beforeprint", function () {
    document.querySelectorAll("details").forEach(function (fold) { fold.open = true; });
  });
})();
