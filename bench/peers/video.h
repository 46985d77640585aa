/* What the peers of `samite bench video` share in its pipeline: rank 0 is the source, the last rank the
 * sink, and those between are workers.
 *
 * The source has RING frames in memory and sends them in turn. A worker is a node of a given speed: it
 * computes the real kernel and then sleeps until the node's time for a frame is over. The sink takes
 * the results in the order of their numbers and adds each to a checksum, which rank 0 compares with
 * that of a sequential run.
 */
#ifndef SAMITE_BENCH_VIDEO_H
#define SAMITE_BENCH_VIDEO_H

#include "peer.h"
#include <stdint.h>

enum {
    RING = 32,
    MOST_WORKERS = 64,
    LATE = 1 << 16 /* results that may wait for the one before them */
};

struct video {
    size_t width, height, bytes;
    long frames, workers;
    double times[MOST_WORKERS]; /* seconds of each node for a frame */
};

/* What the sink found. All processes have the same clock. */
struct outcome {
    uint64_t checksum;
    uint64_t counts[MOST_WORKERS];
    double end;  /* when it had the last result */
    double busy; /* seconds in which it did not wait for results */
};

/* What a worker did. */
struct node {
    int64_t worker, late; /* late: frames for which the kernel took longer than the node */
    double processing;    /* seconds in which it had a frame */
    double left;          /* when it heard that there are no more frames */
};

/* 0 where the command does not have a time for each worker. */
static inline int video_of(const struct command *k, long workers, struct video *v)
{
    *v = (struct video) { (size_t)k->width, (size_t)k->height, (size_t)(k->width * k->height), k->iters, 0, { 0 } };
    const char *at = k->times;
    for (char *end; v->workers < MOST_WORKERS; at = end + 1) {
        v->times[v->workers++] = strtod(at, &end) * 1e-6;
        if (*end != ',')
            break;
    }
    return v->workers == workers && v->bytes > 0 && v->frames > 0;
}

static inline uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* A ramp that moves from frame to frame, and a band of noise. */
static inline void make_frame(unsigned char *p, const struct video *v, long number)
{
    uint64_t state = mix((uint64_t)number + 1);
    for (size_t y = 0; y < v->height; y++) {
        unsigned char *row = p + y * v->width;
        for (size_t x = 0; x < v->width; x++)
            row[x] = (unsigned char)((x + 3 * y + 7 * (size_t)number) >> 2);
        for (size_t x = 0; y % 24 == 0 && x < v->width; x++)
            row[x] = (unsigned char)((state = state * 6364136223846793005u + 1442695040888963407u) >> 56);
    }
}

/* Memory that goes back to the system with drop_frames(), whatever the allocator keeps. */
static inline unsigned char *take_frames(size_t bytes)
{
    unsigned char *p = take_cold(bytes);
    madvise(p, bytes, MADV_HUGEPAGE);
    memset(p, 1, bytes);
    return p;
}

static inline void drop_frames(unsigned char *p, size_t bytes)
{
    if (p)
        munmap(p, bytes);
}

/* The frames of the source. */
static inline unsigned char *make_ring(const struct video *v)
{
    unsigned char *ring = take_frames(RING * v->bytes);
    for (long i = 0; i < RING && i < v->frames; i++)
        make_frame(ring + (size_t)i * v->bytes, v, i);
    return ring;
}

static inline unsigned char sobel_of(int a0, int a1, int a2, int r0, int r2, int b0, int b1, int b2)
{
    short gx = (short)(a2 - a0 + 2 * (r2 - r0) + b2 - b0), gy = (short)(b0 - a0 + 2 * (b1 - a1) + b2 - a2);
    short sum = (short)((gx < 0 ? -gx : gx) + (gy < 0 ? -gy : gy));
    return (unsigned char)(sum > 255 ? 255 : sum);
}

/* |gx| + |gy|, at most 255; beyond an edge, the nearest pixel is repeated. */
static inline void sobel(const struct video *v, const unsigned char *restrict in, unsigned char *restrict out)
{
    size_t w = v->width, last = w - 1;
    for (size_t y = 0; y < v->height; y++) {
        const unsigned char *r = in + y * w, *a = y ? r - w : r, *b = y + 1 < v->height ? r + w : r;
        unsigned char *o = out + y * w;
        size_t one = last ? 1 : 0;
        o[0] = sobel_of(a[0], a[0], a[one], r[0], r[one], b[0], b[0], b[one]);
        for (size_t x = 1; x < last; x++)
            o[x] = sobel_of(a[x - 1], a[x], a[x + 1], r[x - 1], r[x + 1], b[x - 1], b[x], b[x + 1]);
        o[last] = sobel_of(a[last - one], a[last], a[last], r[last - one], r[last], b[last - one], b[last], b[last]);
    }
}

/* Eight words at a time, so that it is limited by memory. */
static inline uint64_t hash(const unsigned char *p, size_t bytes)
{
    uint64_t lanes[8] = { 1, 2, 3, 4, 5, 6, 7, 8 }, all = bytes;
    size_t at = 0;
    for (; at + 64 <= bytes; at += 64)
        for (int lane = 0; lane < 8; lane++) {
            uint64_t word;
            memcpy(&word, p + at + 8 * lane, 8);
            lanes[lane] = (lanes[lane] ^ word) * 0x9e3779b97f4a7c15u;
            lanes[lane] ^= lanes[lane] >> 29;
        }
    for (; at < bytes; at++)
        all = mix(all ^ p[at]);
    for (int lane = 0; lane < 8; lane++)
        all = mix(all ^ lanes[lane]);
    return all;
}

/* Adds the next frame's hash to the checksum of all before it. */
static inline uint64_t chain(uint64_t checksum, uint64_t hash)
{
    return mix(checksum * 31 + hash);
}

/* The checksum of a sequential run. */
static inline uint64_t sequential(const struct video *v, const unsigned char *ring)
{
    uint64_t each[RING] = {0}, checksum = 0;
    unsigned char *out = take_pages(v->bytes);
    for (long i = 0; i < RING && i < v->frames; i++) {
        sobel(v, ring + (size_t)i * v->bytes, out);
        each[i] = hash(out, v->bytes);
    }
    for (long i = 0; i < v->frames; i++)
        checksum = chain(checksum, each[i % RING]);
    free(out);
    return checksum;
}

/* Computes a frame in the time that the node needs for it. `meanwhile`, if it is not NULL, is called in
 * between while the node would compute: a library that makes no progress by itself makes some. */
static inline void compute(const struct video *v, const unsigned char *in, unsigned char *out, struct node *node,
                           void (*meanwhile)(void))
{
    static const double EACH = 0.0005;
    double begin = now(), end = begin + v->times[node->worker];
    sobel(v, in, out);
    node->late += now() > end;
    struct timespec nap = { 0, (long)(EACH * 1e9) };
    while (meanwhile && now() + EACH < end) {
        meanwhile();
        nanosleep(&nap, NULL);
    }
    struct timespec t = { (time_t)end, (long)((end - (double)(time_t)end) * 1e9) };
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL))
        ;
    node->processing += now() - begin;
}

/* Frames of all nodes together in a second. */
static inline double rate_of(const struct video *v)
{
    double rate = 0;
    for (int w = 0; w < v->workers; w++)
        rate += 1 / v->times[w];
    return rate;
}

/* Seconds of all nodes together, none of which ever waits. */
static inline double ideal_of(const struct video *v)
{
    return (double)v->frames / rate_of(v);
}

/* How many results come, as a rule, before the one that the slowest node has. */
static inline long early_of(const struct video *v)
{
    double slowest = 0;
    for (int w = 0; w < v->workers; w++)
        slowest = v->times[w] > slowest ? v->times[w] : slowest;
    long early = (long)(slowest * rate_of(v)) + v->workers;
    return early < v->frames ? early : v->frames;
}

/* What a source knows that plans the end, as Samite's does: when each node is done with what it has. */
struct plan {
    int ahead; /* how often a worker asks before it is done with a frame */
    long asked[MOST_WORKERS], given[MOST_WORKERS];
    double free_at[MOST_WORKERS];
    int is_over[MOST_WORKERS]; /* it gets no more frames */
};

/* Decides whether a node gets the next frame, after which `left` come: not if the others would have done
 * all of them before it would be done with this one. */
static inline int is_given(const struct video *v, struct plan *plan, long worker, long left)
{
    double time = now(), could = 0;
    /* It asks when it is done with a frame: what it has besides begins now. */
    long done_with = ++plan->asked[worker] - plan->ahead;
    if (done_with > 0)
        plan->free_at[worker] = time + (double)(plan->given[worker] - done_with) * v->times[worker];
    double begin = plan->free_at[worker] > time ? plan->free_at[worker] : time;
    double done = begin + v->times[worker];
    for (int w = 0; w < v->workers; w++) {
        double from = plan->free_at[w] > time ? plan->free_at[w] : time;
        if (w != worker && !plan->is_over[w] && done > from)
            could += (double)(long)((done - from) / v->times[w] - 1e-9);
    }
    if (plan->is_over[worker] || could > (double)left) {
        plan->is_over[worker] = 1;
        return 0;
    }
    plan->free_at[worker] = done;
    plan->given[worker]++;
    return 1;
}

/* The sum of the differences between the frames of each node and its ideal share, over twice the frames. */
static inline double deviation_of(const struct video *v, const struct outcome *o)
{
    double ideal = ideal_of(v), sum = 0;
    for (int w = 0; w < v->workers; w++)
        sum += __builtin_fabs((double)o->counts[w] - ideal / v->times[w]);
    return sum / (2 * (double)v->frames);
}

/* The runs of the last size: all ranks know for which one there are runs, rank 0 has their figures. It
 * answers `wall` with a new run, and other figures with the median of those that it has, unless the
 * results of one of them were wrong. */
static struct {
    struct video of;
    int count, is_wrong;
    double walls[64], deviations[64];
    char last[1 << 15]; /* the last run, as JSON */
} past;

static inline int is_past(const struct video *v)
{
    return past.count > 0 && !memcmp(&past.of, v, sizeof *v);
}

static inline void remember(const struct video *v, double wall, double deviation, int is_good)
{
    if (!is_past(v))
        past.count = past.is_wrong = 0;
    past.of = *v;
    past.is_wrong |= !is_good;
    int at = past.count < 64 ? past.count++ : 63;
    past.walls[at] = wall;
    past.deviations[at] = deviation;
}

/* Describes a run, which is remembered already. `messages`: sent for each frame. */
static inline void describe(const struct video *v, double start, const struct outcome *o, const struct node *nodes,
                            int messages)
{
    size_t room = sizeof past.last;
    int at = snprintf(past.last, room,
                      "{\"wall_s\":%.9f,\"decode_s\":0,\"encode_s\":%.9f,\"messages_per_frame\":%d,"
                      "\"checksum\":\"%016llx\",\"nodes\":[",
                      o->end - start, o->busy, messages, (unsigned long long)o->checksum);
    for (int w = 0; w < v->workers; w++)
        at += snprintf(past.last + at, room - (size_t)at,
                       "%s{\"frames\":%llu,\"needs_s\":%.9f,\"processing_s\":%.9f,\"waiting_s\":%.9f,"
                       "\"late_frames\":%lld}",
                       w ? "," : "", (unsigned long long)o->counts[w], v->times[w], nodes[w].processing,
                       nodes[w].left - start - nodes[w].processing, (long long)nodes[w].late);
    snprintf(past.last + at, room - (size_t)at, "]}");
}

static inline int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static inline double median_of(const double *values)
{
    double sorted[64];
    memcpy(sorted, values, sizeof sorted);
    qsort(sorted, (size_t)past.count, sizeof *sorted, by_size);
    return (sorted[(past.count - 1) / 2] + sorted[past.count / 2]) / 2;
}

static inline int is_figure(const char *name)
{
    return !strcmp(name, "wall") || !strcmp(name, "ideal") || !strcmp(name, "deviation") || !strcmp(name, "run");
}

/* The answer to `name` after a run of `wall` seconds, which is below 0 if there was none. */
static inline double figure_of(const char *name, const struct video *v, double wall)
{
    if (!strcmp(name, "wall"))
        return wall;
    return strcmp(name, "ideal") ? median_of(past.deviations) : median_of(past.walls) / ideal_of(v);
}

#endif
