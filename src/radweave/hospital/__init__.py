"""Reports as other systems read them: DICOM, PDF, FHIR, HL7, text. All are written from one ``FinishedReport``."""
