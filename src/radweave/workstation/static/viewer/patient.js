// A patient and a study in words, from the headers of the images as the server shows them.

export const dateOf = (text) => (/^\d{8}$/.test(text) ? `${text.slice(0, 4)}-${text.slice(4, 6)}-${text.slice(6)}` : text);
export const ageOf = (text) => text.replace(/^0+(?=\d)/, "").replace(/Y$/, " y").replace(/M$/, " mo").replace(/W$/, " wk").replace(/D$/, " d");
export const ageAndSex = ({ patient_age: age, patient_sex: sex }) => [ageOf(age), sex].filter(Boolean).join(", ");

/** Name and id; age, sex and day of the study: a line each, those that the headers have. */
export function patientLines(headers) {
  const { patient_name: name, patient_id: id, study_date: day } = headers;
  return [[name, id].filter(Boolean).join(" · "), [ageAndSex(headers), dateOf(day)].filter(Boolean).join(" · ")].filter(Boolean);
}
