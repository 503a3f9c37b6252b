"""The scripts in which a run's state and context are read and written (`store.py` runs them).

And those of `begun.py` and `replicas.py`, which go by the clock of Redis, too.
"""

from procession_services.runtime import admission

__all__ = [
    "ADMIT", "ALIVE", "BEGIN", "CANCEL", "COMMIT", "END", "LIVING", "LOG_PARTS", "NEXT", "PART", "REFUSE", "SAVE",
    "SILENT", "STANDS", "TAKE", "UNCLAIM",
]  # fmt: skip

_KEEP = """
-- For so long at least; a run that waits for a person may have to be kept for longer.
local function keep(key, ttl)
  if redis.call('TTL', key) < tonumber(ttl) then redis.call('EXPIRE', key, ttl) end
end
"""
_STATE = (
    admission.PLACES
    + _KEEP
    + """
-- The next command is claimed with the state that wants it: whoever saves that does it, too.
local function claim(key, seq, owner)
  redis.call('HSET', key, 'claim', seq .. ':' .. owner, 'claims', seq .. ':1', 'begun', seq .. ':1')
end
local function first(line)
  local run = redis.call('LINDEX', line, 0)
  while run and redis.call('EXISTS', run) == 0 do
    redis.call('LPOP', line)
    run = redis.call('LINDEX', line, 0)
  end
  return run
end
-- Returns the runs that may begin because this one has given back its place, or nothing where nothing was saved.
local function save(keys, version, state, deadline, member, ttl, done, plan, out, place, numbered_in, owner)
  local have = tonumber(redis.call('HGET', keys[1], 'state_v') or '0')
  if have ~= tonumber(version) then return nil end
  redis.call('HSET', keys[1], 'state_v', have + 1, 'state', state, 'out', out, 'numbered_in', numbered_in)
  if plan ~= '' then redis.call('HSET', keys[1], 'plan', plan) end
  if owner ~= '' then claim(keys[1], out, owner) end
  redis.call('EXPIRE', keys[1], ttl)
  if done ~= '' then redis.call('HDEL', keys[1], 'ctx', 'ctx_result'); redis.call('DEL', keys[3])
  else redis.call('EXPIRE', keys[3], ttl) end
  redis.call('ZADD', keys[2], deadline, member)
  if keys[4] then redis.call('LREM', keys[4], 1, keys[1]) end
  local tenant, run = string.match(member, '^(%S+) (%S+)$')
  if place == 'leave' then return leave(tenant, run) end
  if place == 'hold' then hold(tenant, run) end
  return {}
end
"""
)
_KNOWN = """
local kept = redis.call('HMGET', KEYS[1], 'state_v', 'state', 'refused', 'cancelled', 'plan')
local told = redis.call('GET', KEYS[1] .. ':told')
if kept[2] or kept[3] or told then return {'known', kept[1], kept[2], kept[3], told, kept[5]} end
"""
_NOW = """
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
"""
_IN_TIME = (
    _NOW
    + """
-- Who has asked a server that stood still since has been told that it does not answer, and nobody would begin the run.
if now > tonumber(ARGV[#ARGV]) then return {'late', now} end
"""
)
COMMIT = (
    _STATE
    + """
local have = redis.call('HMGET', KEYS[1], 'ctx_v', 'ctx_seq', 'claim', 'out', 'state_v', 'cancelled')
local seq, last = tonumber(ARGV[2]), tonumber(have[2] or '-1')
if last == seq then return redis.call('HGET', KEYS[1], 'ctx_result') end
if not have[5] or have[4] ~= ARGV[2] then return 0 end
if tonumber(have[1] or '0') ~= tonumber(ARGV[1]) or last > seq then return 0 end
if have[3] and have[3] ~= ARGV[2] .. ':' .. ARGV[5] then return 0 end
redis.call('HSET', KEYS[1], 'ctx_v', tonumber(ARGV[1]) + 1, 'ctx_seq', seq, 'ctx', ARGV[3], 'ctx_result', ARGV[4])
keep(KEYS[1], ARGV[11])
if ARGV[6] ~= '' then
  redis.call('RPUSH', KEYS[3], ARGV[6])
  keep(KEYS[3], ARGV[11])
end
local names = save(KEYS, unpack(ARGV, 7))
return names and {have[6] or '', unpack(names)} or 1
"""
)
END = (
    _STATE
    + """
local have = redis.call('HMGET', KEYS[1], 'ctx_v', 'ctx_seq', 'claim')
if tonumber(have[2] or '-1') >= tonumber(ARGV[2]) then return 0 end
if tonumber(have[1] or '0') ~= tonumber(ARGV[1]) then return 0 end
if have[3] and have[3] ~= ARGV[2] .. ':' .. ARGV[3] then return 0 end
local names = save(KEYS, unpack(ARGV, 4))
if not names then return 0 end
redis.call('HSET', KEYS[1], 'ctx_v', tonumber(ARGV[1]) + 1, 'ctx_seq', ARGV[2])
return names
"""
)
TAKE = """
local fields = {'ctx_v', 'ctx_seq', 'ctx', 'ctx_result', 'cancelled', 'state_v', 'state', 'plan', 'out', 'claims',
  'numbered_in', 'claim', 'begun'}
local have = redis.call('HMGET', KEYS[1], unpack(fields))
local prefix, claims, claim = ARGV[1] .. ':', have[10], have[12]
have[10] = 0
if tonumber(have[2] or '-1') < tonumber(ARGV[1]) and have[9] == ARGV[1] then
  local other = claim and string.sub(claim, 1, #prefix) == prefix and claim ~= prefix .. ARGV[2]
  if other and (ARGV[3] == '1' or (ARGV[5] and claim ~= prefix .. ARGV[5])) then return 0 end
  local function once_more(counted)
    local before = counted and string.sub(counted, 1, #prefix) == prefix and string.sub(counted, #prefix + 1)
    return tonumber(before or '0') + 1
  end
  have[10] = math.max(once_more(claims), tonumber(ARGV[3]))
  redis.call('HSET', KEYS[1], 'claim', prefix .. ARGV[2], 'claims', prefix .. have[10],
    'begun', prefix .. once_more(have[13]))
  if ARGV[4] ~= '' then redis.call('HSET', KEYS[1], 'message', ARGV[4]) end
end
return have
"""
STANDS = """
local stands = {}
for i = 1, #KEYS, 2 do
  local stand = redis.call('HMGET', KEYS[i], 'state_v', 'out', 'claim')
  stand[4] = redis.call('EXISTS', KEYS[i + 1])
  table.insert(stands, stand)
end
return stands
"""
UNCLAIM = """
local seq, owner = string.match(redis.call('HGET', KEYS[1], 'claim') or '', '^(%d+):(.*)$')
if owner ~= ARGV[1] or redis.call('HGET', KEYS[1], 'out') ~= seq then return 0 end
redis.call('HDEL', KEYS[1], 'claim')
if ARGV[2] == '' then redis.call('HDEL', KEYS[1], 'claims', 'begun') end
return 1
"""
SAVE = (
    _STATE
    + """
local names = save(KEYS, unpack(ARGV))
if not names then return 0 end
if KEYS[4] and ARGV[9] == 'hold' then
  redis.call('LPUSH', KEYS[4], KEYS[1])
  keep(KEYS[4], ARGV[5])
end
return names
"""
)
ADMIT = _STATE + _KNOWN + _IN_TIME + admission.ADMIT
REFUSE = (
    _KEEP
    + _KNOWN
    + _IN_TIME
    + """
redis.call('HSET', KEYS[1], 'refused', ARGV[1])
keep(KEYS[1], ARGV[2])
"""
)
ALIVE = (
    _NOW
    + """
redis.call('ZADD', KEYS[1], now, ARGV[1])
return redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now - tonumber(ARGV[2]))
"""
)
SILENT = (
    _NOW
    + """
redis.call('SET', KEYS[1], now, 'NX', 'EX', ARGV[1])
return now - tonumber(redis.call('GET', KEYS[1]))
"""
)
LIVING = (
    _NOW
    + """
return redis.call('ZRANGEBYSCORE', KEYS[1], now - tonumber(ARGV[1]), '+inf')
"""
)
BEGIN = "redis.call('INCR', KEYS[1]); redis.call('EXPIRE', KEYS[1], ARGV[1])"
PART = (
    _NOW
    + """
local begun, moment = string.match(redis.call('GET', KEYS[1]) or '', '^(%d+) (%d+)$')
if begun == ARGV[1] then return math.max(0, tonumber(moment) - now) end
redis.call('SET', KEYS[1], string.format('%s %d', ARGV[1], now + tonumber(ARGV[2])), 'EX', ARGV[3])
return tonumber(ARGV[2])
"""
)
NEXT = (
    _STATE
    + """
local run = first(KEYS[1])
return run and redis.call('HEXISTS', run, 'claim') == 0 and run
"""
)
LOG_PARTS = (
    _KEEP
    + """
local state, out = unpack(redis.call('HMGET', KEYS[1], 'state_v', 'out'))
local ended = not state or out == '0' and redis.call('HEXISTS', KEYS[1], 'ctx') == 0
if ended then return end
redis.call('RPUSH', KEYS[2], ARGV[1])
keep(KEYS[2], ARGV[2])
"""
)
CANCEL = """
redis.call('HSET', KEYS[1], 'cancelled', '1')
if redis.call('TTL', KEYS[1]) < 0 then redis.call('EXPIRE', KEYS[1], ARGV[1]) end
"""
