// What Verilator calls when a model prints, asserts, stops or gives up: collected per thread and handed to the
// caller of eval, instead of text on stdout and abort().
#include "verilated.h"
#include <cstdio>

int verilated_pending = 0;

namespace {
// The last text printed is held back: if a stop follows, it is the message of that stop.
thread_local std::string held;
thread_local std::string failed;

void mark(std::string& slot, std::string text) {
    if (held.empty() && failed.empty()) __atomic_fetch_add(&verilated_pending, 1, __ATOMIC_RELAXED);
    slot = std::move(text);
}
void print_held() {
    if (!held.empty()) std::fputs(held.c_str(), stderr);
}
void fail(const char* file, int line, const char* what) {
    std::string text = held;
    while (!text.empty() && text.back() == '\n') text.pop_back();
    if (text.find("%Error") == std::string::npos) {
        print_held();
        text = std::string(what) + " at " + (file ? file : "?") + ":" + std::to_string(line);
    }
    // The first failure is the cause; what follows it in the same eval is consequence.
    if (failed.empty()) mark(failed, text);
    held.clear();
}
}  // namespace

int verilated_vprintf(const char* format, va_list args) {
    va_list again;
    va_copy(again, args);
    const int length = std::vsnprintf(nullptr, 0, format, again);
    va_end(again);
    if (length <= 0) return length;
    std::string text(static_cast<size_t>(length) + 1, '\0');
    std::vsnprintf(&text[0], text.size(), format, args);
    text.pop_back();
    print_held();
    mark(held, std::move(text));
    return length;
}
int verilated_printf(const char* format, ...) {
    va_list args;
    va_start(args, format);
    const int length = verilated_vprintf(format, args);
    va_end(args);
    return length;
}
bool verilated_settle(std::string& failure) {
    if (held.empty() && failed.empty()) return false;
    __atomic_fetch_sub(&verilated_pending, 1, __ATOMIC_RELAXED);
    print_held();
    held.clear();
    const bool stopped = !failed.empty();
    if (stopped) failure = std::move(failed);
    failed.clear();
    return stopped;
}

void vl_finish(const char* file, int line, const char*) VL_MT_UNSAFE { fail(file, line, "$finish"); }
void vl_stop(const char* file, int line, const char*) VL_MT_UNSAFE { fail(file, line, "$stop or failed assertion"); }
void vl_stop_maybe(const char* file, int line, const char* hier, bool) VL_MT_UNSAFE { vl_stop(file, line, hier); }
void vl_fatal(const char* file, int line, const char*, const char* message) VL_MT_UNSAFE {
    fail(file, line, message);
    throw VerilatedGivesUp{};
}
