// The C face of one model. `ports.h` is generated from the ports that Verilator declares:
// one PORT(member, "name", input, width) each.
#include "Vmodel.h"
#include "ports.h"
#include <cstddef>
#include <cstdint>
#if VM_TRACE
#include "verilated_fst_c.h"
#endif

namespace {
struct Handle {
    VerilatedContext context;
    Vmodel* model = nullptr;
    std::string failure;
#if VM_TRACE
    VerilatedFstC* trace = nullptr;
#endif
};
struct PortInfo {
    const char* name;
    uint32_t input, width, bytes;
};

// A context that outlives all instances: no thread is left pointing at a deleted one.
VerilatedContext* resting() {
    static VerilatedContext* const context = new VerilatedContext;
    return context;
}
bool settle(Handle* h) { return verilated_settle(h->failure); }

void trace_close(void* handle) {
#if VM_TRACE
    Handle* const h = static_cast<Handle*>(handle);
    if (!h->trace) return;
    Verilated::threadContextp(&h->context);
    h->trace->close();
    delete h->trace;
    h->trace = nullptr;
#else
    (void)handle;
#endif
}
int trace_open(void* handle, const char* path) {
#if VM_TRACE
    Handle* const h = static_cast<Handle*>(handle);
    trace_close(h);
    Verilated::threadContextp(&h->context);
    h->trace = new VerilatedFstC;
    h->model->trace(h->trace, 99);
    h->trace->set_time_unit("1ps");
    h->trace->set_time_resolution("1ps");
    h->trace->open(path);
    return h->trace->isOpen();
#else
    (void)handle, (void)path;
    return 0;
#endif
}
void trace_dump(void* handle, uint64_t time) {
#if VM_TRACE
    Handle* const h = static_cast<Handle*>(handle);
    if (h->trace) h->trace->dump(time);
#else
    (void)handle, (void)time;
#endif
}
void trace_flush(void* handle) {
#if VM_TRACE
    Handle* const h = static_cast<Handle*>(handle);
    if (h->trace) h->trace->flush();
#else
    (void)handle;
#endif
}
void destroy(void* handle) {
    Handle* const h = static_cast<Handle*>(handle);
    trace_close(h);
    if (h->model) {
        Verilated::threadContextp(&h->context);
        try {
            h->model->final();
        } catch (const VerilatedGivesUp&) {
        }
        delete h->model;
    }
    settle(h);
    delete h;
    Verilated::threadContextp(resting());
}
void* create(void** pointers) {
    resting();
    Handle* h = nullptr;
    try {
        h = new Handle;
#if VM_TRACE
        h->context.traceEverOn(true);
#endif
        h->model = new Vmodel(&h->context, "TOP");
    } catch (...) {
        if (h) destroy(h);
        return nullptr;
    }
#define PORT(member, name, input, width) *pointers++ = &h->model->member;
    MODEL_PORTS
#undef PORT
    Verilated::threadContextp(resting());
    return h;
}
int eval(void* handle) {
    Handle* const h = static_cast<Handle*>(handle);
    Verilated::threadContextp(&h->context);
    try {
        h->model->eval();
    } catch (const VerilatedGivesUp&) {
    }
    return __atomic_load_n(&verilated_pending, __ATOMIC_RELAXED) && settle(h);
}
const char* failure(void* handle) { return static_cast<Handle*>(handle)->failure.c_str(); }
void set_time(void* handle, uint64_t time) { static_cast<Handle*>(handle)->context.time(time); }

const PortInfo ports[] = {
#define PORT(member, name, input, width) {name, input, width, sizeof(Vmodel::member)},
    MODEL_PORTS
#undef PORT
    {nullptr, 0, 0, 0}};
}  // namespace

struct Table {
    uint32_t abi, traced;
    const PortInfo* ports;
    void* (*create)(void**);
    void (*destroy)(void*);
    int (*eval)(void*);
    const char* (*failure)(void*);
    void (*set_time)(void*, uint64_t);
    int (*trace_open)(void*, const char*);
    void (*trace_dump)(void*, uint64_t);
    void (*trace_flush)(void*);
    void (*trace_close)(void*);
};
extern "C" __attribute__((visibility("default"))) const Table verilated_model;
const Table verilated_model = {1,       VM_TRACE,   ports,      create,      destroy,    eval,
                               failure, set_time,   trace_open, trace_dump,  trace_flush, trace_close};
