"""The features that only clients of Orchard Env use: a JSON terminal, and the detection of repeated exec requests.

Orchard Env's other routes are the same as Holdfast's own, in ``gateway.routes``. ``installation`` adds these features to a gateway. The
package can be removed together with that call in ``gateway.__main__``; nothing else imports it.
"""
