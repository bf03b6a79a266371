"""Images in a browser, the same on the workstation and in pages that stand alone.

``pixels`` is the arithmetic in Python, ``static/viewer`` the viewer itself, ``script`` puts its modules into one page.
"""
