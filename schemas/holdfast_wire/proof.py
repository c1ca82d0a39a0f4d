"""How a gateway and an agent prove themselves to each other on dialling (PROTOCOL §1.3).

Owns the token's derivation and the two proofs. The token itself never travels: a recycled address that reaches somebody else's
agent learns nothing from the attempt, and fails to answer. Called by the gateway's dial and the agent's server.
"""

from __future__ import annotations

import hashlib
import hmac

DIAL_HEADER = "X-Holdfast-Dial"
PROOF_HEADER = "X-Holdfast-Proof"


def _mac(key: str, text: str) -> str:
    return hmac.new(key.encode(), text.encode(), hashlib.sha256).hexdigest()


def agent_token(secret: str, sandbox_id: str, incarnation: str) -> str:
    """The token of one incarnation of a sandbox: derived from the deployment's secret, so it is stored nowhere."""
    return _mac(secret, f"agent-token:{sandbox_id}:{incarnation}")


def dial_header(token: str, nonce: str) -> str:
    """What the dialler sends as ``X-Holdfast-Dial``; ``nonce`` is fresh, 32 hex digits."""
    return f"{nonce}.{_mac(token, 'dial:' + nonce)}"


def answer_dial(token: str, header: str) -> str | None:
    """The agent's ``X-Holdfast-Proof`` for a valid dial header, None for any other."""
    nonce, _, mac = header.partition(".")
    if not header.isascii() or len(nonce) != 32 or not hmac.compare_digest(mac, _mac(token, "dial:" + nonce)):
        return None
    return _mac(token, "proof:" + nonce)


def check_proof(token: str, nonce: str, proof: str) -> bool:
    """Whether ``proof`` shows that the agent which answered knows ``token``."""
    return proof.isascii() and hmac.compare_digest(proof, _mac(token, "proof:" + nonce))
