// Keeps the newest text in sight while it streams, unless the reader has scrolled away.

import { byId } from "./dom.js";

export class Scroll {
  isAtEnd = true;

  constructor() {
    const scroller = byId("scroller");
    const toEnd = byId("to-end");
    // An observer watches the end, because reading its position would make the browser compute the layout twice in a frame.
    const watch = new IntersectionObserver(([entry]) => {
      this.isAtEnd = entry.isIntersecting;
      toEnd.hidden = this.isAtEnd;
    }, { root: scroller, rootMargin: "0px 0px 96px 0px" });
    watch.observe(byId("end"));
    new ResizeObserver(() => this.follow()).observe(scroller);
    scroller.addEventListener("wheel", (event) => { if (event.deltaY < 0) this.isAtEnd = false; }, { passive: true });
    toEnd.addEventListener("click", () => this.toEnd());
  }

  follow() {
    if (this.isAtEnd) this.toEnd();
  }

  toEnd() {
    const scroller = byId("scroller");
    scroller.scrollTop = scroller.scrollHeight;
    this.isAtEnd = true;
  }
}
