// What is selected, as the part of the address after #, so that a link or a reload shows the same.

export function readAddress(): URLSearchParams {
  return new URLSearchParams(location.hash.slice(1));
}

export function writeAddress(values: Record<string, string | number>): void {
  const address = new URLSearchParams();
  for (const [name, value] of Object.entries(values)) if (value !== "") address.set(name, String(value));
  try {
    history.replaceState(null, "", `#${address}`);
  } catch {
    // A browser may refuse this for pages from disk; then only links are lost.
  }
}
