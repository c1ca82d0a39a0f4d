"""The agent loop and its limits. So far: ``limits``, the table of what may take how long and what happens then."""
