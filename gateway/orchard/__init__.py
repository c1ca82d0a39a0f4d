"""What only clients of Orchard Env use: a JSON terminal, and the detection of repeated exec requests.

``installation`` adds it to a gateway. Removable with its call in ``gateway.__main__``: nothing else imports this folder.
"""
