#include "tape.h"

#include "exported.h"

using tape::Tape;

thread_local Tape *tape::recording = nullptr;

// From now on, this thread's calls are recorded instead of executed. rows: the number of rows that each call must have.
EXPORTED Tape *tessera_cpu_record(int64_t rows) {
  auto *made = (Tape *)std::malloc(sizeof(Tape));
  if (!made) std::abort();
  *made = Tape{rows};
  made->end = &made->first;
  return tape::recording = made;
}

// Ends the recording. Returns the number of calls, or -1 if one had another number of rows, so that the tape must not be used.
EXPORTED int64_t tessera_cpu_recorded(const Tape *made) {
  tape::recording = nullptr;
  return made->whole ? made->count : -1;
}

EXPORTED void tessera_cpu_replay(const Tape *made, int64_t rows) {
  for (const tape::Call *call = made->first; call; call = call->next) call->again(call, rows);
}

EXPORTED void tessera_cpu_forget(Tape *made) {
  for (tape::Call *call = made->first, *next; call; call = next) {
    next = call->next;
    std::free(call);
  }
  std::free(made);
}
