/* Values that change as a whole, from C. Its argument is a pool that it has to itself. */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "handles.h"

static void an_integer_changes_as_a_whole(void) {
    uint64_t value = 1;
    CHECK(swarm_atomic_load(one, S("n"), 7, &value, &error) == SWARM_OK && value == 7);
    CHECK(swarm_atomic_swap(one, S("n"), 7, 8, &value, &error) == SWARM_OK && value == 7);
    CHECK(swarm_atomic_compare_exchange(two, S("n"), 7, 9, 10, &value, &error) == SWARM_LOST && value == 8);
    CHECK(swarm_atomic_compare_exchange(two, S("n"), 7, 8, 10, &value, &error) == SWARM_OK && value == 8);
    CHECK(swarm_atomic_fetch_add(one, S("n"), 7, 5, &value, &error) == SWARM_OK && value == 10);
    CHECK(swarm_atomic_fetch_add(two, S("n"), 7, (uint64_t)-16, &value, &error) == SWARM_OK && value == 15);
    CHECK(swarm_atomic_load(one, S("n"), 7, &value, &error) == SWARM_OK && (int64_t)value == -1);
}

/* What is to become of a state, and how often that was asked. */
struct change {
    const void *state;
    size_t length;
    bool refuses;
    int calls;
    char seen[16];
};

static bool becomes(void *context, const void *state, size_t length, const void **changed, size_t *changed_length) {
    struct change *change = context;
    change->calls++;
    snprintf(change->seen, sizeof change->seen, "%.*s", state ? (int)length : 4, state ? (const char *)state : "NULL");
    *changed = change->state;
    *changed_length = change->length;
    return !change->refuses;
}

static bool is_state(const char *name, const char *state, size_t length) {
    void *found;
    size_t found_length;
    CHECK(swarm_guarded_get_alloc(one, name, strlen(name), &found, &found_length, &error) == SWARM_OK && found);
    const bool is_so = found && found_length == length && memcmp(found, state, length) == 0;
    swarm_free(found);
    return is_so;
}

static void a_state_becomes_what_a_function_makes_of_it(void) {
    struct change change = {.state = "first", .length = 5}, empty = {.length = 0}, refuses = {.refuses = true};
    void *state = "";
    size_t length = 1;
    CHECK(swarm_guarded_get_alloc(one, S("state"), &state, &length, &error) == SWARM_ABSENT && !state && !length);
    CHECK(swarm_guarded_update(one, S("state"), becomes, &refuses, &error) == SWARM_LOST && refuses.calls == 1);
    CHECK(swarm_guarded_get_alloc(one, S("state"), &state, &length, &error) == SWARM_ABSENT);
    CHECK(swarm_guarded_update(one, S("state"), becomes, &change, &error) == SWARM_OK && change.calls == 1);
    CHECK(strcmp(change.seen, "NULL") == 0 && is_state("state", "first", 5));
    CHECK(swarm_guarded_update(two, S("state"), becomes, &empty, &error) == SWARM_OK);
    CHECK(strcmp(empty.seen, "first") == 0 && is_state("state", "", 0));
    CHECK(swarm_guarded_update(two, S("state"), becomes, &refuses, &error) == SWARM_LOST && refuses.seen[0] == 0);
}

/* While it runs another one changes the state, the first time. */
static bool appends_late(void *context, const void *state, size_t length, const void **changed, size_t *changed_length) {
    struct change *change = context;
    static char made[16];
    struct change other = {.state = "other", .length = 5};
    if (change->calls++ == 0) CHECK(swarm_guarded_update(one, S("late"), becomes, &other, NULL) == SWARM_OK);
    memcpy(made, state ? state : "", length);
    memcpy(made + length, "!", 1);
    *changed = made;
    *changed_length = length + 1;
    return true;
}

static void a_function_is_called_again_where_another_change_came_first(void) {
    struct change change = {.calls = 0};
    CHECK(swarm_guarded_update(one, S("late"), appends_late, &change, &error) == SWARM_OK && change.calls == 2);
    CHECK(is_state("late", "other!", 6));
}

/* What other languages make of them: `values_are_what_other_languages_make_of_them` of the store's `objects::tests`. */
static void they_are_encoded_as_in_rust(void) {
    struct change change = {.state = "state", .length = 5};
    static const char integer[] = "\xffswarm\x07\x01\x02\0\0\0\0\0\0\x80", state[] = "\xffswarm\x08\x01\x05state";
    char value[64];
    uint64_t number;
    size_t length;
    CHECK(swarm_put(one, S("raw"), integer, sizeof integer - 1, &error) == SWARM_OK);
    CHECK(swarm_atomic_load(one, S("raw"), 0, &number, &error) == SWARM_OK && number == (UINT64_C(1) << 63 | 2));
    CHECK(swarm_atomic_swap(one, S("encoded"), 0, number, &number, &error) == SWARM_OK && number == 0);
    CHECK(swarm_get(one, S("encoded"), value, sizeof value, &length, &error) == SWARM_OK);
    CHECK(length == sizeof integer - 1 && memcmp(value, integer, length) == 0);
    CHECK(swarm_guarded_update(one, S("encoded state"), becomes, &change, &error) == SWARM_OK);
    CHECK(swarm_get(one, S("encoded state"), value, sizeof value, &length, &error) == SWARM_OK);
    CHECK(length == sizeof state - 1 && memcmp(value, state, length) == 0);
    /* Of another type. */
    CHECK(swarm_put(one, S("raw"), integer, 12, &error) == SWARM_OK);
    CHECK(swarm_atomic_load(one, S("raw"), 0, &number, &error) == SWARM_ERROR_GIVE_UP && number == 0);
    CHECK(swarm_put(one, S("raw"), state, 12, &error) == SWARM_OK);
    CHECK(swarm_guarded_update(one, S("raw"), becomes, &change, &error) == SWARM_ERROR_GIVE_UP);
}

static void a_key_used_as_something_else_is_an_error(void) {
    struct change change = {.state = "state", .length = 5};
    swarm_guard *guard;
    void *state = &change;
    size_t length;
    uint64_t value;
    CHECK(swarm_atomic_load(one, S("state"), 0, &value, &error) == SWARM_ERROR_OTHER_KIND);
    CHECK(swarm_guarded_get_alloc(one, S("n"), &state, &length, &error) == SWARM_ERROR_OTHER_KIND && !state && !length);
    CHECK(swarm_guarded_update(one, S("n"), becomes, &change, &error) == SWARM_ERROR_OTHER_KIND && change.calls == 0);
    CHECK(strstr(error.message, "atomic") && !error.may_have_taken_effect);
    CHECK(swarm_lock_acquire(one, S("n"), 0, &guard, &error) == SWARM_ERROR_OTHER_KIND);
    CHECK(swarm_put(one, S("text"), S("text"), &error) == SWARM_OK);
    CHECK(swarm_atomic_fetch_add(one, S("text"), 0, 1, &value, &error) == SWARM_ERROR_OTHER_KIND);
}

static void null_and_what_cannot_be_are_errors(void) {
    struct change null = {.length = 1}, too_long = {.state = "", .length = SWARM_MAX_VALUE + (size_t)1}, longest = {.length = 1};
    void *state;
    size_t length;
    uint64_t value;
#define REFUSED(call) CHECK((call) == SWARM_ERROR_ARGUMENT && error.status == SWARM_ERROR_ARGUMENT && error.message[0])
    REFUSED(swarm_atomic_load(NULL, S("n"), 0, &value, &error));
    REFUSED(swarm_atomic_load(one, NULL, 1, 0, &value, &error));
    REFUSED(swarm_atomic_load(one, "", 0, 0, &value, &error));
    REFUSED(swarm_atomic_load(one, S("n"), 0, NULL, &error));
    REFUSED(swarm_atomic_swap(one, S("n"), 0, 1, NULL, &error));
    REFUSED(swarm_atomic_compare_exchange(one, S("n"), 0, 1, 1, NULL, &error));
    REFUSED(swarm_atomic_fetch_add(NULL, S("n"), 0, 1, &value, &error));
    REFUSED(swarm_guarded_get_alloc(NULL, S("state"), &state, &length, &error));
    REFUSED(swarm_guarded_get_alloc(one, S("state"), NULL, &length, &error));
    REFUSED(swarm_guarded_get_alloc(one, S("state"), &state, NULL, &error));
    CHECK(!state);
    REFUSED(swarm_guarded_get_alloc(one, "", 0, &state, &length, &error));
    REFUSED(swarm_guarded_update(NULL, S("state"), becomes, &longest, &error));
    REFUSED(swarm_guarded_update(one, NULL, 1, becomes, &longest, &error));
    REFUSED(swarm_guarded_update(one, S("state"), NULL, NULL, &error));
    CHECK(longest.calls == 0);
    REFUSED(swarm_guarded_update(one, S("state"), becomes, &null, &error));
    REFUSED(swarm_guarded_update(one, S("state"), becomes, &too_long, &error));
    /* Its name and its mark take room as well. */
    longest.state = calloc(1, SWARM_MAX_VALUE);
    longest.length = SWARM_MAX_VALUE;
    REFUSED(swarm_guarded_update(one, S("state"), becomes, &longest, &error));
    free((void *)longest.state);
    CHECK(is_state("state", "", 0));
}

static swarm_store *shared;

/* Adds a byte to a state, in memory of the thread's own. */
static bool grows(void *context, const void *state, size_t length, const void **changed, size_t *changed_length) {
    char *made = context;
    if (length >= 200) return false;
    memcpy(made, state ? state : "", length);
    made[length] = 'x';
    *changed = made;
    *changed_length = length + 1;
    return true;
}

static void *count(void *unused) {
    char made[200];
    uint64_t before;
    for (int n = 0; n < 25; n++) {
        CHECK(swarm_atomic_fetch_add(shared, S("threads"), 100, 2, &before, NULL) == SWARM_OK && before >= 100);
        CHECK(swarm_guarded_update(shared, S("threads' state"), grows, made, NULL) == SWARM_OK);
    }
    return unused;
}

/* With fewer clients than threads. */
static void no_change_of_several_threads_is_lost(void) {
    pthread_t threads[4];
    uint64_t sum;
    void *state;
    size_t length;
    CHECK(swarm_open(pool, 2, &shared, NULL) == SWARM_OK);
    for (int at = 0; at < 4; at++) CHECK(pthread_create(&threads[at], NULL, count, NULL) == 0);
    for (int at = 0; at < 4; at++) pthread_join(threads[at], NULL);
    CHECK(swarm_atomic_load(one, S("threads"), 100, &sum, &error) == SWARM_OK && sum == 300);
    CHECK(swarm_guarded_get_alloc(one, S("threads' state"), &state, &length, &error) == SWARM_OK && length == 100);
    swarm_free(state);
    swarm_close(shared, NULL);
}

static void calls_in_a_forked_child_fail(void) {
    struct change change = {.state = "state", .length = 5};
    int status = -1;
    fflush(NULL);
    const pid_t process = fork();
    if (process == 0) {
        uint64_t value;
        failures = 0;
        alarm(60);
        CHECK(swarm_atomic_load(one, S("n"), 7, &value, &error) == SWARM_ERROR_FORKED);
        CHECK(swarm_guarded_update(one, S("state"), becomes, &change, &error) == SWARM_ERROR_FORKED && change.calls == 0);
        _exit(failures != 0);
    }
    CHECK(waitpid(process, &status, 0) == process && WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

int main(int argc, char **argv) {
    int status = opens(argc, argv);
    if (status) return status;
    an_integer_changes_as_a_whole();
    a_state_becomes_what_a_function_makes_of_it();
    a_function_is_called_again_where_another_change_came_first();
    they_are_encoded_as_in_rust();
    a_key_used_as_something_else_is_an_error();
    null_and_what_cannot_be_are_errors();
    no_change_of_several_threads_is_lost();
    calls_in_a_forked_child_fail();
    return closes();
}
