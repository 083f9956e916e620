// The similarity of vectors: the cosine of the angle between them.

// vectors: [[number]], of one length. Returns [[number]], from -1 to 1, for each two of them.
export function cosines(vectors) {
  const lengths = vectors.map(vector => Math.sqrt(product(vector, vector)) || 1); // a vector of zeros is like none
  return vectors.map((one, row) =>
    vectors.map((other, column) => product(one, other) / lengths[row] / lengths[column]));
}

function product(one, other) {
  let sum = 0;
  for (let index = 0; index < one.length; index++) sum += one[index] * other[index];
  return sum;
}
