/* What a click does: a link of the critical path, or a button, moves the timeline. */
(function () {
  /* Drawings are painted anew for each frame of a move, thousands of small rectangles: a processor does that at once,
     a graphics card no faster, and one that is only emulated ten times slower.  So canvases are kept in memory. */
  const getContext = HTMLCanvasElement.prototype.getContext;
  HTMLCanvasElement.prototype.getContext = function (kind, options) {
    return getContext.call(this, kind, kind === "2d" ? {...options, willReadFrequently: true} : options);
  };
  function timeline() {
    for (const doc of Bokeh.documents) {
      const found = doc.get_model_by_name("timeline");
      if (found) return found;
    }
    return null;
  }
  function show(from, to, at) {
    const figure = timeline();
    if (!figure) return;
    const end = figure.x_range.bounds[1] / 1.02;
    const around = Math.max((to - from) * 1.5, end / 200);
    figure.x_range.setv({start: Math.max(0, from - around), end: Math.min(end, to + around)});
    const rows = figure.y_range.start - figure.y_range.end;
    if (at < figure.y_range.end || at + 1 > figure.y_range.start)
      figure.y_range.setv({start: at + rows / 2 + 0.5, end: at - rows / 2 + 0.5});
    document.getElementById("timeline").scrollIntoView();
  }
  /* Figures that share their axis move together; those out of sight are painted when they come into it. */
  function holdWhatIsOutOfSight() {
    if (!(window.Bokeh && Bokeh.documents.length && Bokeh.documents.every((doc) => doc.is_idle)))
      return void setTimeout(holdWhatIsOutOfSight, 50);
    const figures = new Map();
    const watch = new IntersectionObserver((seen) => {
      for (const {target, isIntersecting} of seen) figures.get(target).hold_render = !isIntersecting;
    }, {rootMargin: "200px"});
    for (const place of document.querySelectorAll("[data-root-id]")) {
      const root = Bokeh.documents.flatMap((doc) => doc.roots()).find((each) => each.id === place.dataset.rootId);
      const drawn = place.firstElementChild; // the place itself has no box
      if (root && drawn) figures.set(drawn, root), watch.observe(drawn);
    }
  }
  holdWhatIsOutOfSight();
  document.addEventListener("click", (event) => {
    const row = event.target.closest("tr.go");
    if (row) show(+row.dataset.from, +row.dataset.to, +row.dataset.row);
    const button = event.target.closest("button[data-rows]");
    const figure = button && timeline();
    if (figure) {
      figure.x_range.setv({start: 0, end: figure.x_range.bounds[1] / 1.02});
      figure.y_range.setv({start: +button.dataset.rows + 0.02, end: -0.02});
    }
  });
})();
