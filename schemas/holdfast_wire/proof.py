"""How a gateway and an agent prove themselves to each other on dialling (PROTOCOL §1.3, §1.6, §1.7).

Owns the token's derivation, the proofs, and how a token is passed to an agent that is adopted. The token itself is never sent:
when a recycled address leads to another sandbox's agent, that agent learns nothing and cannot answer. Called by the gateway's dial
and the agent's server.
"""

from __future__ import annotations

import hashlib
import hmac

DIAL_HEADER = "X-Holdfast-Dial"
PROOF_HEADER = "X-Holdfast-Proof"
IDENTITY_HEADER = "X-Holdfast-Identity"
BODY_HEADER = "X-Holdfast-Body"
IDLE_HEADER = "X-Holdfast-Idle"


def _mac(key: str, text: str) -> str:
    return hmac.new(key.encode(), text.encode(), hashlib.sha256).hexdigest()


def agent_token(secret: str, sandbox_id: str, incarnation: str) -> str:
    """The token of one incarnation of a sandbox: derived from the deployment's secret, so it is stored nowhere."""
    return _mac(secret, f"agent-token:{sandbox_id}:{incarnation}")


def dial_header(token: str, nonce: str) -> str:
    """The value of ``X-Holdfast-Dial``; ``nonce`` is fresh, 32 hex digits."""
    return f"{nonce}.{_mac(token, 'dial:' + nonce)}"


def dialled_nonce(token: str, header: str) -> str | None:
    """The nonce of a valid dial header, None for any other."""
    nonce, _, mac = header.partition(".")
    if not header.isascii() or len(nonce) != 32 or not hmac.compare_digest(mac, _mac(token, "dial:" + nonce)):
        return None
    return nonce


def proof_of(token: str, nonce: str, identity: str = "") -> str:
    """The agent's ``X-Holdfast-Proof``. ``identity`` is the value of its ``X-Holdfast-Identity``, empty if it sends none."""
    return _mac(token, f"proof:{nonce}:{identity}" if identity else f"proof:{nonce}")


def answer_dial(token: str, header: str, identity: str = "") -> str | None:
    """The agent's ``X-Holdfast-Proof`` for a valid dial header, None for any other."""
    nonce = dialled_nonce(token, header)
    return None if nonce is None else proof_of(token, nonce, identity)


def check_proof(token: str, nonce: str, proof: str, identity: str = "") -> bool:
    """Whether ``proof`` shows that the agent which answered knows ``token`` and claims to be ``identity``."""
    return proof.isascii() and hmac.compare_digest(proof, proof_of(token, nonce, identity))


def body_mac(token: str, nonce: str, body: bytes) -> str:
    """The value of ``X-Holdfast-Body``, which protects the body of a request to an agent from changes on its way (PROTOCOL §1.7)."""
    return _mac(token, f"body:{nonce}:{hashlib.sha256(body).hexdigest()}")


def check_body(token: str, nonce: str, body: bytes, mac: str) -> bool:
    """Whether this body was sent by a holder of ``token``."""
    return mac.isascii() and hmac.compare_digest(mac, body_mac(token, nonce, body))


def seal_token(token: str, nonce: str, new_token: str) -> str:
    """Encrypt a new token (64 hexadecimal digits) for an agent that knows ``token``. Applying the function again decrypts it."""
    pad = hmac.digest(token.encode(), f"seal:{nonce}".encode(), hashlib.sha256)
    return bytes(a ^ b for a, b in zip(pad, bytes.fromhex(new_token), strict=True)).hex()
