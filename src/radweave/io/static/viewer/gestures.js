// Fingers, pen and mouse on an image: one way for all of them, by pointer events.
//
//     gestures(stage, { begins(event), drags(across, down, isMove), pinches(factor, x, y) });
//
// One pointer drags. Two fingers move the image and, as they part, enlarge it. A finger that is left over does nothing.

const START = 6; // CSS pixels that a finger moves before it is taken for a drag: the second one may still be on its way

/** `begins` says whether there is something to do it to. Lengths are CSS pixels; (x, y) lies in the stage. */
export function gestures(stage, on) {
  const down = new Map();
  let isMove = false, isSpent = false, hasStarted = false;

  const place = () => {
    const [one, other] = [...down.values()];
    return { x: (one.x + other.x) / 2, y: (one.y + other.y) / 2, apart: Math.max(1, Math.hypot(one.x - other.x, one.y - other.y)) };
  };

  stage.addEventListener("pointerdown", (event) => {
    const isTouch = event.pointerType === "touch";
    if (down.size && !isTouch) return; // another button of the same mouse
    if (!isTouch && event.button > 1 && event.pointerType !== "pen") return;
    if (down.size >= 2 || !on.begins(event)) return;
    down.set(event.pointerId, { x: event.clientX, y: event.clientY });
    stage.setPointerCapture(event.pointerId);
    if (down.size === 2) isSpent = true; // for whichever stays down
    else [isMove, isSpent, hasStarted] = [event.button >= 1 || event.ctrlKey || event.shiftKey, false, !isTouch];
  });

  stage.addEventListener("pointermove", (event) => {
    const before = down.get(event.pointerId);
    if (!before) return;
    const [across, deep] = [event.clientX - before.x, event.clientY - before.y];
    if (down.size === 2) {
      const from = place();
      Object.assign(before, { x: event.clientX, y: event.clientY });
      const to = place();
      const box = stage.getBoundingClientRect();
      on.drags(to.x - from.x, to.y - from.y, true);
      on.pinches(to.apart / from.apart, to.x - box.left, to.y - box.top);
      return;
    }
    if (isSpent || (!hasStarted && Math.hypot(across, deep) < START)) return;
    hasStarted = true;
    Object.assign(before, { x: event.clientX, y: event.clientY });
    on.drags(across, deep, isMove);
  });

  for (const name of ["pointerup", "pointercancel", "lostpointercapture"]) stage.addEventListener(name, (event) => down.delete(event.pointerId));
}
