// llama.cpp without anything around it. Answers greedily: driver MODEL PROMPT_TOKENS TOKENS; prints the tokens. Quantizes, to one of
// llama.h's numbers of file types: driver FILE TARGET quantize TYPE
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "llama.h"

static int answer(const char *file, int prompt_tokens, int tokens) {
  llama_model *model = llama_model_load_from_file(file, llama_model_default_params());
  if (!model) return fprintf(stderr, "llama.cpp could not load the model\n"), 1;
  auto params = llama_context_default_params();
  params.n_ctx = params.n_batch = prompt_tokens + tokens;
  params.n_threads = params.n_threads_batch = 1;
  llama_context *context = llama_init_from_model(model, params);
  llama_sampler *sampler = llama_sampler_init_greedy();
  std::vector<llama_token> next(prompt_tokens);
  for (int place = 0; place < prompt_tokens; place++) next[place] = place + 3;
  for (int number = 0; number < tokens; number++) {
    if (!context || llama_decode(context, llama_batch_get_one(next.data(), (int)next.size())))
      return fprintf(stderr, "llama.cpp could not run a step\n"), 1;
    next = {llama_sampler_sample(sampler, context, -1)};
    printf("%d\n", next[0]);
  }
  return 0;
}

int main(int number, char **argument) {
  llama_log_set([](ggml_log_level, const char *, void *) {}, nullptr);
  llama_backend_init();
  if (number == 5 && !strcmp(argument[3], "quantize")) {
    auto params = llama_model_quantize_default_params();
    params.ftype = (llama_ftype)atoi(argument[4]);
    params.nthread = 1;
    return llama_model_quantize(argument[1], argument[2], &params) ? 1 : 0;
  }
  return number == 4 ? answer(argument[1], atoi(argument[2]), atoi(argument[3])) : 2;
}
