"""The agent loop, its tools and its limits. So far the pure parts: ``limits`` (what may take how long and what happens then),
``tools`` (definitions as the two public harnesses have them), ``observations`` (what a policy is shown, what hands work in) and
``edits`` (the file editor on text).
"""
