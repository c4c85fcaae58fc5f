// What a GPU does while a program runs, told when it ends: how much of the time something runs on it, and what each kernel takes.
// A library for CUPTI, which is beside CUDA; `bench/cuda run FOLDER trace` builds it and gives it to the program by
// CUDA_INJECTION64_PATH. Replays of graphs are seen kernel by kernel. What comes before the first gap of TRACE_GAP_MS or more
// milliseconds (50 by default) from the end is left out: so only the last stretch of steps counts.
#include <cupti.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct { unsigned long long start, end; const char *name; } Span;
// `time` is that in which one of them ran at least: many run side by side.
typedef struct { const char *name; unsigned long long count, time, until; } Total;

static Span *spans;
static size_t count, room;

static void add(unsigned long long start, unsigned long long end, const char *name) {
    if (count == room) spans = realloc(spans, (room = room ? 2 * room : 1 << 16) * sizeof(Span));
    spans[count++] = (Span){start, end, strdup(name ? name : "?")};
}

static void CUPTIAPI give(uint8_t **buffer, size_t *size, size_t *records) {
    *size = 8 << 20, *records = 0;
    *buffer = aligned_alloc(8, *size);
}

static void CUPTIAPI take(CUcontext context, uint32_t stream, uint8_t *buffer, size_t size, size_t valid) {
    CUpti_Activity *record = NULL;
    while (cuptiActivityGetNextRecord(buffer, valid, &record) == CUPTI_SUCCESS) {
        if (record->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) {
            KERNEL *kernel = (KERNEL *)record;
            add(kernel->start, kernel->end, kernel->name);
        } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMSET) {
            MEMSET *set = (MEMSET *)record;
            add(set->start, set->end, "memset");
        } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMCPY) {
            MEMCPY *copy = (MEMCPY *)record;
            add(copy->start, copy->end, "memcpy");
        }
    }
    size_t dropped = 0;
    cuptiActivityGetNumDroppedRecords(context, stream, &dropped);
    if (dropped) fprintf(stderr, "trace: %zu records were dropped\n", dropped);
    free(buffer);
}

static int by_start(const void *a, const void *b) {
    const unsigned long long x = ((const Span *)a)->start, y = ((const Span *)b)->start;
    return x < y ? -1 : x > y;
}

static int by_time(const void *a, const void *b) {
    const unsigned long long x = ((const Total *)a)->time, y = ((const Total *)b)->time;
    return x > y ? -1 : x < y;
}

static void tell(void) {
    cuptiActivityFlushAll(1);
    if (count == 0) return (void)fprintf(stderr, "trace: nothing ran\n");
    qsort(spans, count, sizeof(Span), by_start);
    const char *stated = getenv("TRACE_GAP_MS");
    const double gap = (stated ? atof(stated) : 50.0) * 1e6;
    size_t first = count - 1;
    while (first > 0 && spans[first].start < spans[first - 1].end + gap) first--;
    unsigned long long busy = 0, until = spans[first].start;
    enum { MOST = 4096 };
    static Total totals[MOST];
    size_t kinds = 0;
    for (size_t i = first; i < count; i++) {
        const Span span = spans[i];
        const unsigned long long start = span.start > until ? span.start : until;
        if (span.end > start) busy += span.end - start, until = span.end;
        size_t kind = 0;
        while (kind < kinds && strcmp(totals[kind].name, span.name)) kind++;
        if (kind == MOST) continue;
        if (kind == kinds) totals[kinds++] = (Total){span.name, 0, 0, 0};
        Total *total = totals + kind;
        const unsigned long long from = span.start > total->until ? span.start : total->until;
        total->count++;
        if (span.end > from) total->time += span.end - from, total->until = span.end;
    }
    const double all = until - spans[first].start;
    fprintf(stderr, "trace: something ran %.2f %% of %.2f ms, %zu kernels and copies\n", 100 * busy / all, all / 1e6, count - first);
    qsort(totals, kinds, sizeof(Total), by_time);
    for (size_t i = 0; i < kinds && i < 40; i++)
        fprintf(stderr, "%9.3f ms %6llu x %8.2f us  %.90s\n", totals[i].time / 1e6, totals[i].count,
                totals[i].time / 1e3 / totals[i].count, totals[i].name);
}

int InitializeInjection(void) {
    cuptiActivityRegisterCallbacks(give, take);
    cuptiActivityEnable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL);
    cuptiActivityEnable(CUPTI_ACTIVITY_KIND_MEMSET);
    cuptiActivityEnable(CUPTI_ACTIVITY_KIND_MEMCPY);
    atexit(tell);
    return 1;
}
