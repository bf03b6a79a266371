"""De-identification of DICOM images: PS3.15 Annex E, Basic Application Level Confidentiality Profile.

With its option "Retain Longitudinal Temporal Information With Modified Dates": all dates of a patient move by the same
number of days. Pseudonyms, UIDs and that number follow from a secret key, so that files of a patient processed at any
time belong together, and the mapping cannot be inverted without the key.

Text burned into pixels is not detected: images of kinds that often have it are refused.
"""
