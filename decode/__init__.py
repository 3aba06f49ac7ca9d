"""The KV-managed decode loop: scheduler, KV cache, executors, sampler, driver.

Must not know YAML, locust or HTTP. The core (`types, plan, config, page_pool, radix, kv_cache, sequence, policy,
scheduler, engine`) imports the standard library only and takes time as an argument.
"""
