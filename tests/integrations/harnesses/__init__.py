"""Tests of ``holdfast.integrations`` with the real packages of the harnesses, in environments of their own (``make integrations``)."""
