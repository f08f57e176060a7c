// A list that draws only the entries in view, so that 10,000 stay usable.

import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";

interface Props {
  label: string;
  count: number;
  /** Position of the selected entry, -1 if none. */
  selected: number;
  onSelect: (position: number) => void;
  children: (position: number) => ComponentChildren;
}

const HEIGHT = 46;
const BEYOND = 6;

export function List({ label, count, selected, onSelect, children }: Props) {
  const box = useRef<HTMLDivElement>(null);
  const [view, setView] = useState({ top: 0, height: 600 });
  const look = () => box.current && setView({ top: box.current.scrollTop, height: box.current.clientHeight });
  const position = useRef(selected);
  position.current = selected;
  const reveal = () => {
    const element = box.current;
    if (!element) return; // the list has gone while its size changed
    const top = position.current * HEIGHT;
    const beyond = Math.max(element.scrollTop - top, top + HEIGHT - element.scrollTop - element.clientHeight);
    if (position.current >= 0 && beyond > 2 * HEIGHT) element.scrollTop = top - (element.clientHeight - HEIGHT) / 2;
    else if (position.current >= 0 && beyond > 0) element.scrollTop += top < element.scrollTop ? -beyond : beyond;
    look();
  };
  useEffect(() => {
    const observer = new ResizeObserver(reveal);
    observer.observe(box.current!);
    return () => observer.disconnect();
  }, []);
  useEffect(reveal, [selected, count]);
  const first = Math.max(0, Math.floor(view.top / HEIGHT) - BEYOND);
  const last = Math.min(count, Math.ceil((view.top + view.height) / HEIGHT) + BEYOND);
  const positions = Array.from({ length: Math.max(0, last - first) }, (_, i) => first + i);
  const onKeyDown = (event: KeyboardEvent) => {
    const page = Math.max(1, Math.floor(view.height / HEIGHT) - 1);
    const to = { Home: 0, End: count - 1, PageUp: selected - page, PageDown: selected + page }[event.key];
    if (to === undefined || !count) return;
    event.preventDefault();
    onSelect(Math.min(count - 1, Math.max(0, to)));
  };
  return (
    <div
      ref={box}
      class="list"
      role="listbox"
      tabIndex={0}
      aria-label={label}
      aria-activedescendant={selected >= 0 ? `entry-${selected}` : undefined}
      onScroll={look}
      onKeyDown={onKeyDown}
    >
      <div class="list-inner" style={{ height: `${count * HEIGHT}px` }}>
        {positions.map((position) => (
          <div
            key={position}
            id={`entry-${position}`}
            role="option"
            aria-selected={position === selected}
            aria-posinset={position + 1}
            aria-setsize={count}
            class="entry"
            style={{ transform: `translateY(${position * HEIGHT}px)` }}
            onClick={() => onSelect(position)}
          >
            {children(position)}
          </div>
        ))}
      </div>
    </div>
  );
}
