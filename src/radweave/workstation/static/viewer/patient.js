// A patient and a study in words, from the headers of the images as the server shows them.

export const dateOf = (text) => (/^\d{8}$/.test(text) ? `${text.slice(0, 4)}-${text.slice(4, 6)}-${text.slice(6)}` : text);
export const ageOf = (text) => text.replace(/^0+(?=\d)/, "").replace(/Y$/, " y").replace(/M$/, " mo").replace(/W$/, " wk").replace(/D$/, " d");
export const ageAndSex = ({ patient_age: age, patient_sex: sex }) => [ageOf(age), sex].filter(Boolean).join(", ");

/** Texts in one line, each isolated: one that is written from right to left moves none of the others. */
export const inLine = (...texts) => texts.filter(Boolean).map((one) => `\u2068${one}\u2069`).join(" · ");

/** Name and id; age, sex and day of the study: a line each, those that the headers have. */
export function patientLines(headers) {
  const { patient_name: name, patient_id: id, study_date: day } = headers;
  return [inLine(name, id), inLine(ageAndSex(headers), dateOf(day))].filter(Boolean);
}
