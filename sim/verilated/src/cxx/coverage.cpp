// Where Verilator's coverage counters are, instead of its own list of them, which only writes files: compiled into a
// model that counts. The points of the model made last on this thread are handed over by `verilated_coverage`; they
// live as long as its context.
#include "verilated.h"
#include "verilated_cov.h"
#include <cstdint>
#include <string>
#include <vector>

namespace {
struct Point {
    const uint32_t* counter;
    uint32_t line;
    const char *page, *comment;
};
}  // namespace

// The name is Verilator's: it may make and destroy a VerilatedCovContext.
class VerilatedCovImp final : public VerilatedCovContext {
public:
    std::vector<Point> points;
    std::vector<std::string*> texts;
    const uint32_t* counter = nullptr;
    VerilatedCovImp() = default;
    ~VerilatedCovImp() override {
        for (std::string* text : texts) delete text;
    }
    const char* keep(const char* text) {
        texts.push_back(new std::string{text});
        return texts.back()->c_str();
    }
};

namespace {
thread_local VerilatedCovImp* last = nullptr;
}

VerilatedCovContext* VerilatedContext::coveragep() VL_MT_SAFE {
    if (!m_coveragep) m_coveragep.reset(last = new VerilatedCovImp);
    return static_cast<VerilatedCovImp*>(m_coveragep.get());
}
void VerilatedCovContext::_inserti(uint32_t* counter) VL_MT_SAFE {
    static_cast<VerilatedCovImp*>(this)->counter = counter;
}
void VerilatedCovContext::_insertf(const char*, int) VL_MT_SAFE {}
void VerilatedCovContext::_insertp(const char*, const char*, const char*, const char*, const char*, int line,
                                   const char*, int, const char*, const std::string&, const char*,
                                   const char* page, const char*, const char* comment, const char*,
                                   const char*) VL_MT_SAFE {
    VerilatedCovImp* const all = static_cast<VerilatedCovImp*>(this);
    all->points.push_back({all->counter, static_cast<uint32_t>(line), all->keep(page), all->keep(comment)});
}

extern "C" __attribute__((visibility("default"))) const void* verilated_coverage(size_t* count) {
    *count = last ? last->points.size() : 0;
    return last ? last->points.data() : nullptr;
}
