// Faults in code that gRPC calls on its own threads.
#ifndef KOINE_TESTS_UNIT_PLANTED_FAULTS_RPC_FAULTS_H_
#define KOINE_TESTS_UNIT_PLANTED_FAULTS_RPC_FAULTS_H_

namespace koine::planted {

// Two handlers at once count in one variable.
void RacingHandlers();
// A worker ends an RPC and then uses what OnDone, on another thread, uses too.
void UseAfterFinish();
// No fault: calls that are answered by workers or cancelled, whose state is ordered by nothing but gRPC.
void GuardedCalls();

}  // namespace koine::planted

#endif  // KOINE_TESTS_UNIT_PLANTED_FAULTS_RPC_FAULTS_H_
