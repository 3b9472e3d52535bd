// Declarations shared by the model, Verilator's runtime and the shim.
// Force-included in every unit, so that Verilator prints through `verilated_printf` and never to stdout,
// which belongs to the data of the program that simulates.
#pragma once
#include <cstdarg>
#include <string>

#define VL_USER_FINISH
#define VL_USER_STOP
#define VL_USER_FATAL
#define VL_USER_STOP_MAYBE
#define VL_PRINTF verilated_printf
#define VL_VPRINTF verilated_vprintf

// Verilator 5.006 calls it without declaring it.
void vl_stop_maybe(const char* file, int line, const char* hier, bool maybe);

int verilated_printf(const char* format, ...) __attribute__((format(printf, 1, 2)));
int verilated_vprintf(const char* format, va_list args);

// Non-zero while some thread has text to print or a failure to hand over. One relaxed load per eval.
extern int verilated_pending;
// Prints held text of this thread; moves its failure, if any, to `failure` and returns true.
bool verilated_settle(std::string& failure);
// Thrown where Verilator cannot go on, for instance when combinational logic does not converge.
struct VerilatedGivesUp {};
