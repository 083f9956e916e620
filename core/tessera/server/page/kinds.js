// The kinds of models that answer with numbers, and how the page asks each for texts.

const CATS = ["Where do cats like to sleep?", [
  "The cat sleeps on the sofa.",
  "A kitten naps on the couch.",
  "Dogs like long walks in the park.",
  "Paris is the capital of France.",
  "Berlin is the capital of Germany.",
  "Bread is baked from flour and water.",
]];
const MOODS = ["", [
  "I love this, thank you!",
  "This is the worst film I have ever seen.",
  "It arrived on Tuesday.",
]];

// title, about: above the form. query: "none", "optional" or "needed". button: what sends the form; a kind without one
// has no form. example: the query and the texts. compares: whether texts are compared with each other.
const EMBEDDER = {
  title: "How similar are these texts?",
  about: "Each text becomes a vector; two that mean similar things have a similarity near 1. With a query, the texts "
    + "are also ranked by their similarity to it.",
  query: "optional",
  button: "Compare",
  example: CATS,
  compares: true,
};
const RERANKER = {
  title: "Which text answers the query best?",
  about: "The model reads each text together with the query. Without a query, it scores each text alone.",
  query: "optional",
  button: "Rank",
  example: CATS,
};
const TOKEN_EMBEDDER = {
  title: "Which text answers the query best?",
  about: "Each token becomes a vector; a score is the sum, over the query's tokens, of the best similarity to a token "
    + "of the text.",
  query: "needed",
  button: "Rank",
  example: CATS,
};
const CLASSIFIER = {
  title: "Which label fits each text?",
  about: "The model has a probability for each of its labels.",
  query: "none",
  button: "Classify",
  example: MOODS,
};
const TOKEN_CLASSIFIER = {
  title: "This model answers with numbers for each token",
  about: "This page shows those of whole texts only. POST /pooling has them.",
  query: "none",
};

// model: of GET /v1/models, one that does more than generate.
export function kindOf({ tasks, labels = [] }) {
  if (tasks.includes("embed")) return EMBEDDER;
  if (tasks.includes("classify")) return labels.length > 1 ? CLASSIFIER : RERANKER;
  return tasks.includes("token_embed") ? TOKEN_EMBEDDER : TOKEN_CLASSIFIER;
}
