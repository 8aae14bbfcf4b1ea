/* device.c - choosing a backend, and the first failure of a device. */
#include "device/device.h"

#include <stdio.h>
#include <string.h>

extern const struct device_ops cpu_device_ops;
#ifdef WITH_CUDA
extern const struct device_ops cuda_device_ops;
#endif

const struct device_ops *const device_backends[] = {
#ifdef WITH_CUDA
    &cuda_device_ops,
#endif
    &cpu_device_ops,
    NULL,
};

static void list_backends(char *text, size_t bytes)
{
    size_t used = 0;
    text[0] = '\0';
    for (size_t i = 0; device_backends[i] && used < bytes; i++)
        used += (size_t)snprintf(text + used, bytes - used, ", %s", device_backends[i]->name);
}

/* Backends stand in order of preference, so "auto" is the first one with a usable device. */
static const struct device_ops *find_backend(const char *name)
{
    bool automatic = strcmp(name, "auto") == 0;
    for (size_t i = 0; device_backends[i]; i++) {
        const struct device_ops *ops = device_backends[i];
        if (automatic ? ops->count() > 0 : strcmp(name, ops->name) == 0)
            return ops;
    }
    return NULL;
}

enum status device_open(struct device **dev, const char *name, int ordinal, struct error *e)
{
    const struct device_ops *ops = find_backend(name);
    char known[64];
    *dev = NULL;
    if (!ops) {
        list_backends(known, sizeof known);
        return error_set(e, STATUS_DEVICE, "device \"%s\" is not built in; known: auto%s", name,
                         known);
    }
    int count = ops->count();
    if (count <= 0)
        return error_set(e, STATUS_DEVICE, "device \"%s\": none is usable on this machine", name);
    if (ordinal < 0)
        ordinal = 0;
    if (ordinal >= count)
        return error_set(e, STATUS_DEVICE, "device %s:%d does not exist; this machine has %d",
                         ops->name, ordinal, count);
    return ops->open(dev, ordinal, e);
}

void device_close(struct device *dev)
{
    if (dev)
        dev->ops->close(dev);
}

enum status device_check(struct device *dev, struct error *e)
{
    if (dev->error.status == STATUS_OK)
        return STATUS_OK;
    return error_set(e, dev->error.status, "%s", dev->error.message);
}

void device_fail(struct device *dev, const char *operation, const char *fmt, ...)
{
    char detail[1024];
    va_list ap;
    if (dev->error.status != STATUS_OK)
        return;
    va_start(ap, fmt);
    vsnprintf(detail, sizeof detail, fmt, ap);
    va_end(ap);
    error_set(&dev->error, STATUS_DEVICE, "device %s: %s: %s", dev->ops->name, operation, detail);
}
