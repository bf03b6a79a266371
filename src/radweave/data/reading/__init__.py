"""Reading image files that nobody vouches for: radiographs, CT volumes, DICOM series.

``images`` and ``volumes`` are what the rest of the house uses. Parsing happens in limited child processes (``sandbox``,
``worker``, ``wire``); the ``*_parse`` modules run inside them.
"""
