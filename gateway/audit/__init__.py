"""The audit log: who did what to which sandbox, with which result.

``lines`` builds an entry and masks secrets, ``log`` writes entries and reads them back. ``gateway.app`` records requests and refusals,
``use_cases.audited`` the commands of sessions.
"""
