-- For bench/load.py: POST one fixed body, each thread to an address of its own (in turn), count the answers that are not
-- 200, print one line of JSON at the end.
local file = assert(io.open(os.getenv("BENCH_BODY_FILE"), "rb"))
wrk.method = "POST"
wrk.body = file:read("*a")
file:close()
wrk.headers["Content-Type"] = "application/json"
wrk.headers["Authorization"] = "Bearer " .. os.getenv("BENCH_KEY")

local addresses, threads = {}, {}
for port in os.getenv("BENCH_PORTS"):gmatch("%d+") do
    table.insert(addresses, wrk.lookup("127.0.0.1", port)[1])
end

function setup(thread)
    thread.addr = addresses[#threads % #addresses + 1]
    table.insert(threads, thread)
end

refused = 0
function response(status) if status ~= 200 then refused = refused + 1 end end

function done(summary, latency, requests)
    local all = 0
    for _, thread in ipairs(threads) do all = all + thread:get("refused") end
    local errors = summary.errors
    io.write(string.format(
        '{"answers": %d, "refused": %d, "broken": %d, "seconds": %.6f, "p50_ms": %.4f, "p99_ms": %.4f,'
        .. ' "p999_ms": %.4f}\n',
        summary.requests, all, errors.connect + errors.read + errors.write + errors.timeout,
        summary.duration / 1e6, latency:percentile(50) / 1e3, latency:percentile(99) / 1e3,
        latency:percentile(99.9) / 1e3))
end
