// What the tests in C++ check with: it reports what is not so, and counts it.
#include <iostream>
#include <string>

#include <swarm.hpp>

static int failures = 0;

#define CHECK(what)                                                                                 \
    do {                                                                                            \
        if (!(what)) {                                                                              \
            std::cerr << __FILE__ << ":" << __LINE__ << ": not so: " << #what << "\n";              \
            failures++;                                                                             \
        }                                                                                           \
    } while (0)

template <typename Call>
static swarm_status thrown(Call &&call) {
    try {
        call();
    } catch (const swarm::error &error) {
        CHECK(std::string(error.what()).size() > 5);
        return error.status();
    }
    return SWARM_OK;
}
