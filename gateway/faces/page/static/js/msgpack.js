// Encodes and decodes msgpack, as far as the session protocol uses it (PROTOCOL §2). Owns the limits of what is decoded: it comes from the
// agent of a sandbox, which code in the sandbox may control. Maps become Map, so that no key of theirs is ever a property of an object.

const DEEPEST = 8;
const MOST_ITEMS = 16384;

/** @typedef {null|boolean|number|string|Uint8Array|any[]|Map<any, any>} Value */

class Writer {
  constructor() {
    this.bytes = new Uint8Array(256);
    this.at = 0;
  }

  /** @param {number} n @returns {DataView} a view of the next n bytes */
  next(n) {
    if (this.at + n > this.bytes.length) {
      const larger = new Uint8Array(Math.max(this.bytes.length * 2, this.at + n));
      larger.set(this.bytes);
      this.bytes = larger;
    }
    const view = new DataView(this.bytes.buffer, this.at, n);
    this.at += n;
    return view;
  }

  /** @param {number} kind */
  byte(kind) { this.next(1).setUint8(0, kind); }

  /** @param {number} n @param {number} fixed @param {number} most @param {number[]} kinds of 8, 16 and 32 bits; 0 where there is none */
  length(n, fixed, most, [k8, k16, k32]) {
    if (n <= most) this.byte(fixed | n);
    else if (k8 && n < 256) { this.byte(k8); this.byte(n); } else if (n < 65536) { this.byte(k16); this.next(2).setUint16(0, n); } else { this.byte(k32); this.next(4).setUint32(0, n); }
  }

  /** @param {Uint8Array} data */
  raw(data) {
    const view = this.next(data.length);
    new Uint8Array(view.buffer, view.byteOffset, data.length).set(data);
  }

  /** @param {number} n */
  number(n) {
    if (!Number.isSafeInteger(n)) { this.byte(0xcb); this.next(8).setFloat64(0, n); } else if (n >= 0 && n < 128) this.byte(n);
    else if (n < 0 && n >= -32) this.next(1).setInt8(0, n);
    else if (n < 0) { this.byte(0xd3); this.next(8).setBigInt64(0, BigInt(n)); } else if (n < 256) { this.byte(0xcc); this.byte(n); } else if (n < 65536) { this.byte(0xcd); this.next(2).setUint16(0, n); } else if (n < 2 ** 32) { this.byte(0xce); this.next(4).setUint32(0, n); } else { this.byte(0xcf); this.next(8).setBigUint64(0, BigInt(n)); }
  }

  /** @param {any} value */
  value(value) {
    if (value === null || value === undefined) this.byte(0xc0);
    else if (typeof value === "boolean") this.byte(value ? 0xc3 : 0xc2);
    else if (typeof value === "number") this.number(value);
    else if (typeof value === "string") {
      const data = new TextEncoder().encode(value);
      this.length(data.length, 0xa0, 31, [0xd9, 0xda, 0xdb]);
      this.raw(data);
    } else if (value instanceof Uint8Array) {
      this.length(value.length, 0, -1, [0xc4, 0xc5, 0xc6]);
      this.raw(value);
    } else if (Array.isArray(value)) {
      this.length(value.length, 0x90, 15, [0, 0xdc, 0xdd]);
      for (const one of value) this.value(one);
    } else {
      const pairs = value instanceof Map ? [...value] : Object.entries(value);
      this.length(pairs.length, 0x80, 15, [0, 0xde, 0xdf]);
      for (const [name, one] of pairs) { this.value(name); this.value(one); }
    }
  }
}

class Reader {
  /** @param {Uint8Array} bytes */
  constructor(bytes) {
    this.bytes = bytes;
    this.view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
    this.at = 0;
    this.items = 0;
  }

  /** @param {number} n @returns {number} where the next n bytes begin */
  take(n) {
    const from = this.at;
    if (from + n > this.bytes.length) throw new RangeError("the message is cut off");
    this.at += n;
    return from;
  }

  /** @param {number} size 1, 2 or 4 bytes */
  length(size) {
    const from = this.take(size);
    return size === 1 ? this.view.getUint8(from) : size === 2 ? this.view.getUint16(from) : this.view.getUint32(from);
  }

  /** @param {number} n */
  text(n) { return new TextDecoder().decode(this.bytes.subarray(this.take(n), this.at)); }

  /** @param {number} n */
  data(n) { return this.bytes.slice(this.take(n), this.at); }

  /** @param {number} n @param {number} depth */
  count(n, depth) {
    this.items += n;
    if (depth >= DEEPEST || this.items > MOST_ITEMS) throw new RangeError("the message has too many or too deep values");
  }

  /** @param {number} n @param {number} depth @returns {Value[]} */
  array(n, depth) {
    this.count(n, depth);
    return Array.from({ length: n }, () => this.value(depth + 1));
  }

  /** @param {number} n @param {number} depth */
  map(n, depth) {
    this.count(2 * n, depth);
    /** @type {Map<any, Value>} */
    const found = new Map();
    for (let i = 0; i < n; i += 1) {
      const name = this.value(depth + 1);
      found.set(name, this.value(depth + 1));
    }
    return found;
  }

  /** @param {bigint} n */
  static safe(n) {
    const number = Number(n);
    if (!Number.isSafeInteger(number)) throw new RangeError("the message has a number over 2^53");
    return number;
  }

  /** @param {number} depth @returns {Value} */
  value(depth = 0) {
    const kind = this.view.getUint8(this.take(1));
    if (kind < 0x80) return kind;
    if (kind < 0x90) return this.map(kind & 15, depth);
    if (kind < 0xa0) return this.array(kind & 15, depth);
    if (kind < 0xc0) return this.text(kind & 31);
    if (kind >= 0xe0) return kind - 256;
    switch (kind) {
      case 0xc0: return null;
      case 0xc2: return false;
      case 0xc3: return true;
      case 0xc4: case 0xc5: case 0xc6: return this.data(this.length(1 << (kind - 0xc4)));
      case 0xca: return this.view.getFloat32(this.take(4));
      case 0xcb: return this.view.getFloat64(this.take(8));
      case 0xcc: case 0xcd: case 0xce: return this.length(1 << (kind - 0xcc));
      case 0xcf: return Reader.safe(this.view.getBigUint64(this.take(8)));
      case 0xd0: return this.view.getInt8(this.take(1));
      case 0xd1: return this.view.getInt16(this.take(2));
      case 0xd2: return this.view.getInt32(this.take(4));
      case 0xd3: return Reader.safe(this.view.getBigInt64(this.take(8)));
      case 0xd9: case 0xda: case 0xdb: return this.text(this.length(1 << (kind - 0xd9)));
      case 0xdc: case 0xdd: return this.array(this.length(2 << (kind - 0xdc)), depth);
      case 0xde: case 0xdf: return this.map(this.length(2 << (kind - 0xde)), depth);
      default: throw new RangeError(`the message has the forbidden type ${kind}`);
    }
  }
}

/** @param {any} value @returns {Uint8Array} */
export function encode(value) {
  const writer = new Writer();
  writer.value(value);
  return writer.bytes.slice(0, writer.at);
}

/** All values that stand one after another in `bytes`. Throws RangeError for anything else. @param {Uint8Array} bytes @returns {Value[]} */
export function decodeAll(bytes) {
  const reader = new Reader(bytes), found = [];
  while (reader.at < bytes.length) { reader.items = 0; found.push(reader.value()); }
  return found;
}

/** The one value that `bytes` is. Throws RangeError for anything else. @param {Uint8Array} bytes @returns {Value} */
export function decode(bytes) {
  const found = decodeAll(bytes);
  if (found.length !== 1) throw new RangeError("a message must be one value");
  return found[0];
}
