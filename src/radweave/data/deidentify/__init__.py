"""Take out of DICOM images who they are of: PS3.15 Annex E, Basic Application Level Confidentiality Profile.

With its option "Retain Longitudinal Temporal Information With Modified Dates": the dates of a patient are all moved by
the same number of days. Pseudonyms, UIDs and that number follow from a secret key, so that all files of a patient still
belong together, whenever they come, and who does not have the key cannot go back.

What is burned into the pixels is not looked for: images of kinds that often bear text are refused.
"""
