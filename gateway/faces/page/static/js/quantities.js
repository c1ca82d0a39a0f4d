// Sizes as a caller wrote them: "4", "500m", "16Gi", "512m", "2g". Owns their reading; numbers are shown by dom.js.
const UNITS = { k: 1024, m: 1024 ** 2, g: 1024 ** 3, t: 1024 ** 4 };

/** Bytes, or cores; 0 if the text is none. @param {string|number|null|undefined} text */
export function quantity(text) {
  const match = /^([0-9.]+)\s*([kmgt])?i?b?$/i.exec(String(text ?? "").trim());
  return match ? Number(match[1]) * (match[2] ? UNITS[match[2].toLowerCase()] : 1) : 0;
}
/** Cores: "500m" are half of one. @param {string|number} text */
export const cores = (text) => (/^[0-9.]+m$/.test(String(text)) ? Number(String(text).slice(0, -1)) / 1000 : Number(text) || 0);
