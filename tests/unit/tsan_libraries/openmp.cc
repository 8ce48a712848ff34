// libgomp: a team comes after what its master did before it, and the master goes on after all of it. (Our regions have
// no barriers inside.)
#include "tests/unit/tsan_libraries/real.h"

namespace {

using koine::tsan::Acquire;
using koine::tsan::Release;

struct Team {
  void (*body)(void*);
  void* data;
  char begun, ended;  // addresses that stand for the two moments
};

void Member(void* pointer) {
  Team* team = static_cast<Team*>(pointer);
  Acquire(&team->begun);
  team->body(team->data);
  Release(&team->ended);
}

}  // namespace

extern "C" void GOMP_parallel(void (*body)(void*), void* data, unsigned threads, unsigned flags) {
  Team team = {body, data, 0, 0};
  Release(&team.begun);
  KOINE_REAL("GOMP_parallel", void, void (*)(void*), void*, unsigned, unsigned)(Member, &team, threads, flags);
  Acquire(&team.ended);
}
