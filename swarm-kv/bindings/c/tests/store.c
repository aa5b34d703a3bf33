/* What a program in C meets: each call, what is refused, threads, forks. Its argument is a pool that it has to itself. */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <swarm.h>

#include "check.h"

static const char *pool;

static void each_call_returns_what_it_came_to(swarm_store *store) {
    swarm_error error;
    char buffer[8];
    size_t length = 99;
    void *value;

    CHECK(swarm_get(store, S("key"), buffer, sizeof buffer, &length, &error) == SWARM_ABSENT && length == 0);
    CHECK(swarm_get_alloc(store, S("key"), &value, &length, &error) == SWARM_ABSENT && !value && length == 0);
    CHECK(swarm_update(store, S("key"), S("0"), &error) == SWARM_ABSENT);
    CHECK(swarm_insert(store, S("key"), S("1"), &error) == SWARM_OK);
    CHECK(swarm_insert(store, S("key"), S("2"), &error) == SWARM_EXISTS);
    CHECK(swarm_get(store, S("key"), buffer, sizeof buffer, &length, &error) == SWARM_OK);
    CHECK(length == 1 && buffer[0] == '1');
    CHECK(swarm_update(store, S("key"), S("three"), &error) == SWARM_OK);
    CHECK(swarm_get_alloc(store, S("key"), &value, &length, &error) == SWARM_OK);
    CHECK(length == 5 && memcmp(value, "three", 5) == 0);
    swarm_free(value);

    /* Any byte, and no byte. */
    CHECK(swarm_put(store, S("\0key"), S("a\0b"), &error) == SWARM_OK);
    CHECK(swarm_get(store, S("\0key"), buffer, sizeof buffer, &length, &error) == SWARM_OK);
    CHECK(length == 3 && memcmp(buffer, "a\0b", 3) == 0);
    CHECK(swarm_put(store, S("\0key"), NULL, 0, &error) == SWARM_OK);
    CHECK(swarm_get(store, S("\0key"), NULL, 0, &length, &error) == SWARM_OK && length == 0);
    CHECK(swarm_get_alloc(store, S("\0key"), &value, &length, &error) == SWARM_OK && value && length == 0);
    swarm_free(value);
    CHECK(swarm_delete(store, S("\0key"), &error) == SWARM_OK);
    CHECK(swarm_delete(store, S("\0key"), &error) == SWARM_OK);
    CHECK(swarm_get(store, S("\0key"), NULL, 0, &length, &error) == SWARM_ABSENT);
}

static void values_that_depend_on_the_one_before(swarm_store *store) {
    swarm_error error;
    char buffer[8];
    size_t length = 0;
    int64_t sum = 9;
    CHECK(swarm_compare_and_swap(store, S("swap"), S("0"), S("1"), &error) == SWARM_LOST);
    CHECK(swarm_compare_and_swap(store, S("swap"), NULL, 0, S("1"), &error) == SWARM_OK);
    CHECK(swarm_compare_and_swap(store, S("swap"), NULL, 0, S("2"), &error) == SWARM_LOST);
    CHECK(swarm_compare_and_swap(store, S("swap"), S("1"), S(""), &error) == SWARM_OK);
    CHECK(swarm_get(store, S("swap"), NULL, 0, &length, &error) == SWARM_OK && length == 0);
    CHECK(swarm_compare_and_swap(store, S("swap"), NULL, 0, NULL, 0, &error) == SWARM_LOST);
    CHECK(swarm_compare_and_swap(store, S("swap"), S(""), NULL, 0, &error) == SWARM_OK);
    CHECK(swarm_get(store, S("swap"), NULL, 0, &length, &error) == SWARM_ABSENT);

    uint64_t left = 1;
    CHECK(swarm_ttl(store, S("life"), &left, &error) == SWARM_ABSENT && left == 0);
    CHECK(swarm_put_with_ttl(store, S("life"), S("1"), 3600000, &error) == SWARM_OK);
    CHECK(swarm_ttl(store, S("life"), &left, &error) == SWARM_OK && left <= 3600000 && left > 3000000);
    CHECK(swarm_persist(store, S("life"), &error) == SWARM_OK && swarm_persist(store, S("life"), &error) == SWARM_ABSENT);
    CHECK(swarm_ttl(store, S("life"), &left, &error) == SWARM_OK && left == UINT64_MAX);
    CHECK(swarm_put_with_ttl(store, S("life"), S("2"), 0, &error) == SWARM_OK);
    CHECK(swarm_get(store, S("life"), NULL, 0, &length, &error) == SWARM_ABSENT);
    CHECK(swarm_ttl(store, S("life"), NULL, &error) == SWARM_ERROR_ARGUMENT);

    CHECK(swarm_increment(store, S("sum"), 40, &sum, &error) == SWARM_OK && sum == 40);
    CHECK(swarm_increment(store, S("sum"), -42, &sum, &error) == SWARM_OK && sum == -2);
    CHECK(swarm_get(store, S("sum"), buffer, sizeof buffer, &length, &error) == SWARM_OK);
    CHECK(length == 2 && memcmp(buffer, "-2", 2) == 0);
    CHECK(swarm_put(store, S("sum"), S("many"), &error) == SWARM_OK);
    CHECK(swarm_increment(store, S("sum"), 1, &sum, &error) == SWARM_ERROR_GIVE_UP && sum == 0);
    CHECK(!error.may_have_taken_effect);
    CHECK(swarm_increment(store, S("sum"), 1, NULL, &error) == SWARM_ERROR_ARGUMENT);
    CHECK(swarm_compare_and_swap(store, S("sum"), NULL, 1, S("1"), &error) == SWARM_ERROR_ARGUMENT);
    CHECK(swarm_delete(store, S("sum"), &error) == SWARM_OK);

    swarm_operation *operation;
    const void *value;
    CHECK(swarm_submit_increment(store, S("sum"), 7, &operation, &error) == SWARM_OK);
    CHECK(swarm_wait(operation, &value, &length, &error) == SWARM_OK && length == 1 && memcmp(value, "7", 1) == 0);
    CHECK(swarm_operation_free(operation, &error) == SWARM_OK);
    CHECK(swarm_submit_compare_and_swap(store, S("sum"), S("8"), S("9"), &operation, &error) == SWARM_OK);
    CHECK(swarm_wait(operation, NULL, NULL, &error) == SWARM_LOST);
    CHECK(swarm_operation_free(operation, &error) == SWARM_OK);
    CHECK(swarm_submit_compare_and_swap(store, S("sum"), S("7"), NULL, 0, &operation, &error) == SWARM_OK);
    CHECK(swarm_wait(operation, NULL, NULL, &error) == SWARM_OK);
    CHECK(swarm_operation_free(operation, &error) == SWARM_OK);
    CHECK(swarm_get(store, S("sum"), NULL, 0, &length, &error) == SWARM_ABSENT);
}

static void a_buffer_that_is_too_short_is_left_alone(swarm_store *store) {
    swarm_error error;
    char buffer[5] = "....";
    size_t length = 0;
    CHECK(swarm_put(store, S("key"), S("three"), &error) == SWARM_OK);
    CHECK(swarm_get(store, S("key"), buffer, 4, &length, &error) == SWARM_ERROR_BUFFER);
    CHECK(length == 5 && strcmp(buffer, "....") == 0);
    CHECK(error.status == SWARM_ERROR_BUFFER && strstr(error.message, "5 bytes"));
    CHECK(swarm_get(store, S("key"), NULL, 0, &length, NULL) == SWARM_ERROR_BUFFER && length == 5);
    CHECK(swarm_get(store, S("key"), buffer, 5, &length, &error) == SWARM_OK && memcmp(buffer, "three", 5) == 0);

    char *longest = malloc(SWARM_MAX_VALUE), *back = malloc(SWARM_MAX_VALUE);
    memset(longest, 'x', SWARM_MAX_VALUE);
    CHECK(swarm_put(store, S("long"), longest, SWARM_MAX_VALUE, &error) == SWARM_OK);
    CHECK(swarm_get(store, S("long"), back, SWARM_MAX_VALUE, &length, &error) == SWARM_OK);
    CHECK(length == SWARM_MAX_VALUE && memcmp(longest, back, SWARM_MAX_VALUE) == 0);
    CHECK(swarm_delete(store, S("long"), &error) == SWARM_OK);
    free(longest);
    free(back);
}

static void null_and_wrong_lengths_are_errors(swarm_store *store) {
    swarm_error error;
    char buffer[8];
    size_t length;
    void *value = buffer;
    const void *found;
    swarm_operation *operation;
    swarm_cursor *cursor;
    swarm_store *opened = store;
    static const char bytes[SWARM_MAX_KEY + 1];
    const size_t wrong[] = {0, SWARM_MAX_KEY + 1, (size_t)-1};

#define REFUSED(call, word)                                                                      \
    do {                                                                                         \
        memset(&error, 0, sizeof error);                                                         \
        CHECK((call) == SWARM_ERROR_ARGUMENT && error.status == SWARM_ERROR_ARGUMENT);           \
        CHECK(!error.may_have_taken_effect && strstr(error.message, word));                      \
    } while (0)

    for (size_t at = 0; at < 3; at++) {
        REFUSED(swarm_get(store, bytes, wrong[at], buffer, 8, &length, &error), "1 to 255");
        REFUSED(swarm_get_alloc(store, bytes, wrong[at], &value, &length, &error), "1 to 255");
        REFUSED(swarm_put(store, bytes, wrong[at], S("v"), &error), "1 to 255");
        REFUSED(swarm_insert(store, bytes, wrong[at], S("v"), &error), "1 to 255");
        REFUSED(swarm_update(store, bytes, wrong[at], S("v"), &error), "1 to 255");
        REFUSED(swarm_delete(store, bytes, wrong[at], &error), "1 to 255");
        REFUSED(swarm_submit_get(store, bytes, wrong[at], &operation, &error), "1 to 255");
        CHECK(!operation);
        if (wrong[at]) REFUSED(swarm_keys(store, bytes, wrong[at], &cursor, &error), "255");
    }
    REFUSED(swarm_put(store, S("k"), bytes, SWARM_MAX_VALUE + 1, &error), "at most");
    REFUSED(swarm_put(store, S("k"), bytes, (size_t)-1, &error), "at most");
    REFUSED(swarm_submit_put(store, S("k"), bytes, (size_t)-1, &operation, &error), "at most");
    REFUSED(swarm_put(store, NULL, 3, S("v"), &error), "NULL");
    REFUSED(swarm_put(store, S("k"), NULL, 3, &error), "NULL");
    REFUSED(swarm_get(store, NULL, 3, buffer, 8, &length, &error), "NULL");
    REFUSED(swarm_get(store, S("k"), NULL, 8, &length, &error), "NULL");
    REFUSED(swarm_get(store, S("k"), buffer, 8, NULL, &error), "NULL");
    REFUSED(swarm_get_alloc(store, S("k"), NULL, &length, &error), "NULL");
    REFUSED(swarm_get_alloc(store, S("k"), &value, NULL, &error), "NULL");
    REFUSED(swarm_keys(store, NULL, 3, &cursor, &error), "NULL");
    REFUSED(swarm_keys(store, NULL, 0, NULL, &error), "NULL");
    REFUSED(swarm_cursor_next(NULL, &found, &length, &error), "NULL");
    REFUSED(swarm_submit_delete(store, S("k"), NULL, &error), "NULL");
    REFUSED(swarm_poll(NULL, &found, &length, &error), "NULL");
    REFUSED(swarm_wait(NULL, NULL, NULL, &error), "NULL");

    REFUSED(swarm_get(NULL, S("k"), buffer, 8, &length, &error), "handle");
    REFUSED(swarm_get_alloc(NULL, S("k"), &value, &length, &error), "handle");
    CHECK(!value && !length);
    REFUSED(swarm_put(NULL, S("k"), S("v"), &error), "handle");
    REFUSED(swarm_insert(NULL, S("k"), S("v"), &error), "handle");
    REFUSED(swarm_update(NULL, S("k"), S("v"), &error), "handle");
    REFUSED(swarm_delete(NULL, S("k"), &error), "handle");
    REFUSED(swarm_keys(NULL, NULL, 0, &cursor, &error), "handle");
    REFUSED(swarm_submit_get(NULL, S("k"), &operation, &error), "handle");
    REFUSED(swarm_reopen(NULL, &opened, &error), "handle");
    CHECK(!opened);
    REFUSED(swarm_reopen(store, NULL, &error), "NULL");
    REFUSED(swarm_open(NULL, 0, &opened, &error), "NULL");
    REFUSED(swarm_open(pool, 0, NULL, &error), "NULL");
    REFUSED(swarm_create(NULL, 0, 0, 0, &error), "NULL");
    CHECK(swarm_put(NULL, NULL, 0, NULL, 0, NULL) == SWARM_ERROR_ARGUMENT);

    CHECK(swarm_open("/nowhere/at/all", 0, &opened, &error) == SWARM_ERROR_OPEN && !opened);
    CHECK(strstr(error.message, "/nowhere/at/all"));
    CHECK(swarm_create(pool, 0, 0, 0, &error) == SWARM_ERROR_OPEN && strstr(error.message, "exists"));
    CHECK(swarm_create("/nowhere/at/all", 2, 0, 0, &error) == SWARM_ERROR_OPEN);
    CHECK(swarm_close(NULL, NULL) == SWARM_OK && swarm_operation_free(NULL, NULL) == SWARM_OK);
    swarm_cursor_close(NULL);
    swarm_free(NULL);
    CHECK(strcmp(swarm_status_name(SWARM_ERROR_FORKED), "SWARM_ERROR_FORKED") == 0 && !swarm_status_name(77));
    CHECK(strcmp(swarm_version(), "0.1.0") == 0);
}

static size_t count(swarm_store *store, const char *prefix) {
    swarm_cursor *cursor;
    const void *key;
    size_t length, found = 0;
    if (swarm_keys(store, prefix, strlen(prefix), &cursor, NULL) != SWARM_OK) return (size_t)-1;
    while (swarm_cursor_next(cursor, &key, &length, NULL) == SWARM_OK) {
        CHECK(length > strlen(prefix) && memcmp(key, prefix, strlen(prefix)) == 0);
        found++;
    }
    CHECK(!key && !length && swarm_cursor_next(cursor, &key, &length, NULL) == SWARM_ABSENT);
    swarm_cursor_close(cursor);
    return found;
}

static void a_cursor_finds_each_key(swarm_store *store) {
    char key[32];
    for (int n = 0; n < 300; n++) {
        int length = sprintf(key, "%d:%d", n % 3, n);
        CHECK(swarm_put(store, key, (size_t)length, S("v"), NULL) == SWARM_OK);
    }
    CHECK(count(store, "1:") == 100);
    CHECK(count(store, "none") == 0);
    CHECK(count(store, "") >= 300);
}

static void what_is_submitted_ends(swarm_store *store) {
    enum { MANY = 200 };
    swarm_operation *operations[MANY];
    swarm_error error;
    const void *value;
    size_t length;
    char key[32];
    for (int n = 0; n < MANY; n++) {
        int bytes = sprintf(key, "submitted %d", n);
        CHECK(swarm_submit_put(store, key, (size_t)bytes, &n, sizeof n, &operations[n], &error) == SWARM_OK);
    }
    for (int n = 0; n < MANY; n++) {
        swarm_status status;
        while ((status = swarm_poll(operations[n], NULL, NULL, &error)) == SWARM_PENDING) {}
        CHECK(status == SWARM_OK);
        swarm_operation_free(operations[n], NULL);
    }
    for (int n = 0; n < MANY; n++) {
        int bytes = sprintf(key, "submitted %d", n);
        CHECK(swarm_submit_get(store, key, (size_t)bytes, &operations[n], &error) == SWARM_OK);
    }
    for (int n = 0; n < MANY; n++) {
        CHECK(swarm_wait(operations[n], &value, &length, &error) == SWARM_OK);
        CHECK(length == sizeof n && memcmp(value, &n, sizeof n) == 0);
        /* Once more, the same. */
        CHECK(swarm_poll(operations[n], &value, &length, &error) == SWARM_OK && length == sizeof n);
        swarm_operation_free(operations[n], NULL);
    }

    swarm_operation *operation;
#define COMES_TO(status)                                                                         \
    do {                                                                                         \
        value = "", length = 1;                                                                  \
        CHECK(swarm_wait(operation, &value, &length, &error) == (status) && !value && !length);  \
        CHECK(swarm_operation_free(operation, &error) == SWARM_OK);                              \
    } while (0)
    CHECK(swarm_submit_insert(store, S("submitted 1"), S("v"), &operation, &error) == SWARM_OK);
    COMES_TO(SWARM_EXISTS);
    CHECK(swarm_submit_delete(store, S("submitted 1"), &operation, &error) == SWARM_OK);
    COMES_TO(SWARM_OK);
    CHECK(swarm_submit_update(store, S("submitted 1"), S("v"), &operation, &error) == SWARM_OK);
    COMES_TO(SWARM_ABSENT);
    CHECK(swarm_submit_get(store, S("submitted 1"), &operation, &error) == SWARM_OK);
    COMES_TO(SWARM_ABSENT);
    CHECK(swarm_submit_insert(store, S("submitted 1"), S("v"), &operation, &error) == SWARM_OK);
    COMES_TO(SWARM_OK);
    CHECK(swarm_submit_update(store, S("submitted 1"), S("w"), &operation, &error) == SWARM_OK);
    COMES_TO(SWARM_OK);
}

static void what_came_from_a_handle_outlives_it(void) {
    swarm_store *store;
    swarm_operation *operation;
    swarm_cursor *cursor;
    const void *value, *key;
    size_t length;
    CHECK(swarm_open(pool, 1, &store, NULL) == SWARM_OK);
    CHECK(swarm_put(store, S("outlives"), S("yes"), NULL) == SWARM_OK);
    CHECK(swarm_submit_get(store, S("outlives"), &operation, NULL) == SWARM_OK);
    CHECK(swarm_keys(store, S("outlives"), &cursor, NULL) == SWARM_OK);
    CHECK(swarm_close(store, NULL) == SWARM_OK);
    CHECK(swarm_wait(operation, &value, &length, NULL) == SWARM_OK && length == 3 && memcmp(value, "yes", 3) == 0);
    CHECK(swarm_cursor_next(cursor, &key, &length, NULL) == SWARM_OK && length == 8);
    swarm_operation_free(operation, NULL);
    swarm_cursor_close(cursor);
}

static swarm_store *shared;

static void *work(void *me) {
    for (int n = 0; n < 500; n++) {
        char key[32];
        int value = -1, length = sprintf(key, "thread %s:%d", (const char *)me, n % 20);
        size_t bytes;
        CHECK(swarm_put(shared, key, (size_t)length, &n, sizeof n, NULL) == SWARM_OK);
        CHECK(swarm_get(shared, key, (size_t)length, &value, sizeof value, &bytes, NULL) == SWARM_OK);
        CHECK(bytes == sizeof value && value == n);
    }
    return NULL;
}

static void threads_share_a_handle(void) {
    static char names[][2] = {"a", "b", "c", "d", "e", "f"};
    pthread_t threads[6];
    CHECK(swarm_open(pool, 2, &shared, NULL) == SWARM_OK);
    for (int at = 0; at < 6; at++) CHECK(pthread_create(&threads[at], NULL, work, names[at]) == 0);
    for (int at = 0; at < 6; at++) pthread_join(threads[at], NULL);
    CHECK(count(shared, "thread ") == 120);
    swarm_close(shared, NULL);
}

/* Threads that work while the process forks. Under the address sanitizer none: a lock of its allocator that one of them has is never let go of
 * in the child. */
#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SANITIZED 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(SANITIZED)
enum { BUSY = 0 };
#else
enum { BUSY = 3 };
#endif

static void *keep_busy(void *stop) {
    static int threads;
    char me[16];
    sprintf(me, "busy %d", __atomic_fetch_add(&threads, 1, __ATOMIC_RELAXED));
    while (!__atomic_load_n((int *)stop, __ATOMIC_RELAXED)) work(me);
    return NULL;
}

/* What a child does with its copy of the handle, and with one of its own. It ends by SIGALRM if anything hangs. */
static int child(swarm_store *store, swarm_operation *ended) {
    swarm_error error;
    char buffer[8];
    size_t length;
    void *value;
    swarm_cursor *cursor;
    swarm_operation *operation;
    swarm_store *own;
    failures = 0;
    alarm(60);
#define FORKED(call) CHECK((call) == SWARM_ERROR_FORKED && error.status == SWARM_ERROR_FORKED && !error.may_have_taken_effect)
    FORKED(swarm_get(store, S("parent"), buffer, 8, &length, &error));
    FORKED(swarm_get_alloc(store, S("parent"), &value, &length, &error));
    FORKED(swarm_put(store, S("parent"), S("child's"), &error));
    FORKED(swarm_insert(store, S("new"), S("child's"), &error));
    FORKED(swarm_update(store, S("parent"), S("child's"), &error));
    FORKED(swarm_delete(store, S("parent"), &error));
    FORKED(swarm_keys(store, NULL, 0, &cursor, &error));
    CHECK(swarm_submit_put(store, S("parent"), S("child's"), &operation, &error) == SWARM_OK);
    FORKED(swarm_poll(operation, NULL, NULL, &error));
    FORKED(swarm_wait(operation, NULL, NULL, &error));
    CHECK(swarm_operation_free(operation, &error) == SWARM_OK);
    /* What had ended before is there. */
    const void *found;
    CHECK(swarm_poll(ended, &found, &length, &error) == SWARM_OK && length == 4 && memcmp(found, "here", 4) == 0);
    CHECK(swarm_operation_free(ended, &error) == SWARM_OK);

    CHECK(swarm_reopen(store, &own, &error) == SWARM_OK);
    CHECK(swarm_close(store, &error) == SWARM_OK);
    CHECK(swarm_get(own, S("parent"), buffer, 8, &length, &error) == SWARM_OK && length == 4);
    CHECK(swarm_put(own, S("child"), S("too"), &error) == SWARM_OK);
    CHECK(swarm_close(own, &error) == SWARM_OK);
    return failures != 0;
}

static void calls_in_a_forked_child_fail(void) {
    swarm_store *store;
    swarm_operation *ended;
    char buffer[8];
    size_t length;
    CHECK(swarm_open(pool, 2, &store, NULL) == SWARM_OK);
    CHECK(swarm_put(store, S("parent"), S("here"), NULL) == SWARM_OK);
    CHECK(swarm_submit_get(store, S("parent"), &ended, NULL) == SWARM_OK);
    CHECK(swarm_wait(ended, NULL, NULL, NULL) == SWARM_OK);
    /* Other threads have the clients, or wait for them, while it forks. */
    shared = store;
    int stop = 0;
    pthread_t busy[BUSY + 1];
    for (int at = 0; at < BUSY; at++) CHECK(pthread_create(&busy[at], NULL, keep_busy, &stop) == 0);
    for (int round = 0; round < 10; round++) {
        fflush(NULL);
        pid_t process = fork();
        /* Without what runs at the parent's end: its threads are not there. */
        if (process == 0) _exit(child(store, ended));
        int status = -1;
        CHECK(waitpid(process, &status, 0) == process);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    __atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
    for (int at = 0; at < BUSY; at++) pthread_join(busy[at], NULL);
    CHECK(swarm_get(store, S("parent"), buffer, 8, &length, NULL) == SWARM_OK && length == 4 && memcmp(buffer, "here", 4) == 0);
    CHECK(swarm_get(store, S("new"), buffer, 8, &length, NULL) == SWARM_ABSENT);
    CHECK(swarm_get(store, S("child"), buffer, 8, &length, NULL) == SWARM_OK && length == 3);
    swarm_operation_free(ended, NULL);
    swarm_close(store, NULL);
}

/* Writes until this is killed, and reports when it has begun. */
static void write_for_ever(int ready) {
    swarm_store *store;
    if (swarm_open(pool, 1, &store, NULL) != SWARM_OK || write(ready, "", 1) != 1) _exit(1);
    for (;;) swarm_put(store, S("child"), S("is at work"), NULL);
}

/* Writes the pool over while another process is stopped. What is refused is tried again, if the other one is in an operation. */
static int is_ended(swarm_store *store, pid_t process) {
    static char value[1000];
    int status;
    for (int n = 0; n < 40000;) {
        const int key = n % 100;
        const swarm_status put = swarm_put(store, &key, sizeof key, value, sizeof value, NULL);
        CHECK(put == SWARM_OK || put == SWARM_ERROR_MAKE_ROOM || put == SWARM_ERROR_RETRY);
        n += put == SWARM_OK;
        if (put == SWARM_OK && n % 100 != 0) continue;
        if (waitpid(process, &status, WNOHANG) == process) {
            CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
            return 1;
        }
    }
    return 0;
}

static void a_handle_that_may_ends_who_is_stopped_in_an_operation(void) {
    swarm_store *former, *store;
    swarm_error error;
    int status, ends[2];
    char byte;
    CHECK(pipe(ends) == 0);
    fflush(NULL);
    const pid_t process = fork();
    if (process == 0) write_for_ever(ends[1]);
    /* One that is stopped while it is forked is in no operation, for as many rounds as it gets no further in. */
    close(ends[1]);
    CHECK(read(ends[0], &byte, 1) == 1);
    close(ends[0]);
    CHECK(swarm_open_evicting("/no/pool", 1, 100, &former, &error) == SWARM_ERROR_OPEN && former == NULL);
    CHECK(swarm_open_evicting(pool, 1, 100, &former, &error) == SWARM_OK);
    CHECK(swarm_reopen(former, &store, &error) == SWARM_OK);
    CHECK(swarm_close(former, &error) == SWARM_OK);
    /* It is stopped wherever it is: between two operations it holds nobody up. */
    int ended = 0;
    for (int round = 0; round < 1000 && !ended && failures == 0; round++) {
        CHECK(kill(process, SIGSTOP) == 0);
        CHECK(waitpid(process, &status, WUNTRACED) == process && WIFSTOPPED(status));
        ended = is_ended(store, process);
        if (!ended) {
            kill(process, SIGCONT);
            usleep(1000);
        }
    }
    CHECK(ended);
    if (!ended) kill(process, SIGKILL);
    CHECK(swarm_close(store, &error) == SWARM_OK);
}

static void a_full_pool_asks_for_room(swarm_store *store) {
    static char large[1 << 20];
    swarm_error error;
    swarm_status status = SWARM_OK;
    for (int n = 0; n < 1000 && status == SWARM_OK; n++)
        status = swarm_put(store, &n, sizeof n, large, sizeof large, &error);
    CHECK(status == SWARM_ERROR_MAKE_ROOM && strstr(error.message, "full"));
    for (int n = 0; n < 1000; n++)
        CHECK(swarm_delete(store, &n, sizeof n, &error) == SWARM_OK);
}

int main(int argc, char **argv) {
    swarm_store *store;
    swarm_error error;
    if (argc != 2) return 2;
    pool = argv[1];
    if (swarm_open(pool, 0, &store, &error) != SWARM_OK) {
        fprintf(stderr, "%s\n", error.message);
        return 3;
    }
    each_call_returns_what_it_came_to(store);
    values_that_depend_on_the_one_before(store);
    a_buffer_that_is_too_short_is_left_alone(store);
    null_and_wrong_lengths_are_errors(store);
    a_cursor_finds_each_key(store);
    what_is_submitted_ends(store);
    what_came_from_a_handle_outlives_it();
    threads_share_a_handle();
    calls_in_a_forked_child_fail();
    a_handle_that_may_ends_who_is_stopped_in_an_operation();
    a_full_pool_asks_for_room(store);
    CHECK(swarm_close(store, &error) == SWARM_OK);
    printf("%d failures\n", failures);
    return failures != 0;
}
