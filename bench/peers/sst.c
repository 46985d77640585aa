/* The ADIOS2 SST contestant of `samite bench staging`: a writer and a reader, by its C interface.
 *
 * Every command opens a stream of its own, which is not on the clock. Its parameters besides those
 * below are in SAMITE_BENCH_SST ("Name=Value,Name=Value"). The time is that from the writer's first
 * begin_step after the warm-up to the end of the reader's last step.
 */
#include "staging.h"
#include <adios2_c.h>

static const char *folder;

static void must(int good, const char *what)
{
    if (!good) {
        fprintf(stderr, "adios2: %s failed\n", what);
        exit(1);
    }
}

static void set_parameters(adios2_io *io, int queue)
{
    char own[128];
    snprintf(own, sizeof own, "QueueLimit=%d,QueueFullPolicy=Block,RendezvousReaderCount=1", queue);
    must(!adios2_set_engine(io, "SST"), "set_engine");
    must(!adios2_set_parameters(io, own), "set_parameters");
    const char *more = getenv("SAMITE_BENCH_SST");
    must(!more || !adios2_set_parameters(io, more), "set_parameters");
}

/* A stream and this rank's end of it. */
struct stream {
    adios2_adios *adios;
    adios2_io *io;
    adios2_engine *engine;
    adios2_variable *written;
    struct shape shape;
    double *array;
};

static struct stream open_stream(struct shape s, int queue)
{
    static int count;
    struct stream t = { .shape = s };
    char name[4096];
    size_t shape[2] = { s.rows, s.columns }, start[2] = { 0, 0 };
    snprintf(name, sizeof name, "%s/stream%d", folder, count++);
    must((t.adios = adios2_init_serial()) != NULL, "init");
    must((t.io = adios2_declare_io(t.adios, "bench")) != NULL, "declare_io");
    set_parameters(t.io, queue);
    if (rank == 0)
        t.written = adios2_define_variable(t.io, "u", adios2_type_double, 2, shape, start, shape,
                                           adios2_constant_dims_true);
    /* Opening starts the engine's threads. */
    unpin();
    t.engine = adios2_open(t.io, name, rank == 0 ? adios2_mode_write : adios2_mode_read);
    must(t.engine != NULL, "open");
    pin(rank);
    size_t columns = rank == 0 ? s.columns : s.width;
    t.array = (double *)take_pages(s.rows * columns * sizeof(double));
    if (rank == 0)
        fill_step(t.array, &s, 0);
    return t;
}

static void close_stream(struct stream *t)
{
    must(!adios2_close(t->engine), "close");
    must(!adios2_finalize(t->adios), "finalize");
    free(t->array);
}

static void write_step(struct stream *t)
{
    adios2_step_status status;
    must(!adios2_begin_step(t->engine, adios2_step_mode_append, -1, &status)
         && status == adios2_step_status_ok, "begin_step");
    must(!adios2_put(t->engine, t->written, t->array, adios2_mode_deferred), "put");
    must(!adios2_end_step(t->engine), "end_step");
}

static void read_step(struct stream *t)
{
    const struct shape *s = &t->shape;
    size_t start[2] = { 0, s->first }, count[2] = { s->rows, s->width };
    adios2_step_status status;
    must(!adios2_begin_step(t->engine, adios2_step_mode_read, -1, &status)
         && status == adios2_step_status_ok, "begin_step");
    adios2_variable *u = adios2_inquire_variable(t->io, "u");
    must(u && !adios2_set_selection(u, 2, start, count), "set_selection");
    must(!adios2_get(t->engine, u, t->array, adios2_mode_deferred), "get");
    must(!adios2_end_step(t->engine), "end_step");
}

static void windows(struct stream *t, long count)
{
    for (long i = 0; i < count; i++) {
        for (int step = 0; step < STEPS; step++)
            rank == 0 ? write_step(t) : read_step(t);
        meet(0);
    }
}

static double run(const struct command *k, struct shape s, int is_memory, int *good)
{
    double before = is_memory ? watch_begin(0) : 0;
    struct stream t = open_stream(s, is_memory ? 1 : 2);
    windows(&t, k->warmup);
    double start = now();
    windows(&t, k->iters);
    double result = now() - start;
    if (is_memory)
        result = watch_end() - before;
    /* Once more, with other values. */
    if (rank == 0) {
        fill_step(t.array, &s, 1);
        write_step(&t);
    } else {
        memset(t.array, 0, s.rows * s.width * sizeof(double));
        read_step(&t);
    }
    int mine = rank == 0 || is_step(t.array, &s, 1);
    *good = mine & (int)meet(mine);
    close_stream(&t);
    return result;
}

int main(int argc, char **argv)
{
    const char *text = getenv("SAMITE_BENCH_RANK");
    if (argc != 2 || !text) {
        fprintf(stderr, "usage: SAMITE_BENCH_RANK=0|1 %s CONTROL_FOLDER\n", argv[0]);
        return 2;
    }
    rank = atoi(text);
    folder = argv[1];
    die_with_parent();
    pin(rank);
    acquaint(folder);
    struct control c = control_open(folder, rank);
    meet(0);
    answer(&c, "ready");
    for (struct command k; next_command(&c, &k);) {
        struct shape s;
        int is_slab = !strcmp(k.name, "slab"), is_memory = !strcmp(k.name, "peak"), good;
        if (!is_slab && !is_memory && strcmp(k.name, "step")) {
            answer(&c, "unsupported");
            continue;
        }
        if (!shape(&k, is_slab, &s)) {
            answer(&c, "error the bytes of a step are a power of two");
            continue;
        }
        double value = run(&k, s, is_memory, &good);
        if (good)
            answer_number(&c, value);
        else
            answer(&c, "error the values that were read are not those that were written");
    }
    return 0;
}
