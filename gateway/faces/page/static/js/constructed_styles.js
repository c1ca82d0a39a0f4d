// Styles of xterm.js under a policy that permits no inline style. xterm.js writes rules into style elements and a few style attributes, which the
// policy refuses. Both have a form that scripts may use: constructed style sheets, and an element's style object. Nothing else uses this.

let allowed = false;

/** Makes style elements and style attributes that scripts write take the permitted forms. */
export function allowStyles() {
  if (allowed) return;
  allowed = true;
  const create = document.createElement.bind(document);
  /** @param {string} name @param {any} [options] */
  document.createElement = (name, options) => {
    if (String(name).toLowerCase() !== "style") return create(name, options);
    const node = create("span"); // an empty style element in the document is refused too
    node.hidden = true;
    construct(node);
    return node;
  };
  const set = Element.prototype.setAttribute;
  /** @this {Element} */
  Element.prototype.setAttribute = function setAttribute(name, value) {
    if (name === "style" && this instanceof HTMLElement) this.style.cssText = value;
    else set.call(this, name, value);
  };
}
/** An element in place of a style element: its text becomes a constructed sheet until it is removed. @param {HTMLElement} node */
function construct(node) {
  const sheet = new CSSStyleSheet();
  document.adoptedStyleSheets = [...document.adoptedStyleSheets, sheet];
  let text = "";
  Object.defineProperty(node, "textContent", { get: () => text, set: (value) => { text = String(value ?? ""); sheet.replaceSync(text); } });
  Object.defineProperty(node, "sheet", { get: () => sheet });
  const remove = node.remove.bind(node);
  node.remove = () => { document.adoptedStyleSheets = document.adoptedStyleSheets.filter((one) => one !== sheet); remove(); };
}
