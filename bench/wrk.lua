-- For bench/load.py: POST one fixed body, count the answers that are not 200, print one line of JSON at the end.
wrk.method = "POST"
wrk.body = os.getenv("BENCH_BODY")
wrk.headers["Content-Type"] = "application/json"
wrk.headers["Authorization"] = "Bearer " .. os.getenv("BENCH_KEY")

local threads = {}
function setup(thread) table.insert(threads, thread) end

refused = 0
function response(status) if status ~= 200 then refused = refused + 1 end end

function done(summary, latency, requests)
    local all = 0
    for _, thread in ipairs(threads) do all = all + thread:get("refused") end
    local errors = summary.errors
    io.write(string.format(
        '{"answers": %d, "refused": %d, "broken": %d, "seconds": %.6f, "p50_ms": %.4f, "p99_ms": %.4f}\n',
        summary.requests, all, errors.connect + errors.read + errors.write + errors.timeout,
        summary.duration / 1e6, latency:percentile(50) / 1e3, latency:percentile(99) / 1e3))
end
