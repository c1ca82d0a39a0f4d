"""Building images from Dockerfiles: reading them, and what their instructions mean.

``lines`` reads a file into instructions, ``words`` expands variables, ``instructions`` reads the arguments, ``stages`` says what is built,
``patterns`` and ``context`` find files, ``copying`` places them, ``config`` is the image's configuration. Nothing here talks to a service:
``holdfast._async.building`` does.
"""
