-- The check of the fence. It runs before a writer's own script in the same call, and Redis runs a call as one step.
-- KEYS[1] is the mark, ARGV[1] the token as text, ARGV[2] the mode: "auto" or "strict". The check removes them, so the writer's own KEYS and ARGV start at 1.
--
-- Lua's numbers are doubles, in which 2^53 and 2^53+1 are equal. Tokens are therefore compared as texts of 19 digits, the length of the greatest token.
-- Refusals begin with FENCESTALE, FENCEAHEAD, FENCEMISSING, FENCEMALFORMED or FENCEMARK; after the first two follows the mark.
local token, mode = ARGV[1], ARGV[2]
local function wide(number) return string.rep('0', 19 - #number) .. number end

if not token or token == '' then
  return redis.error_reply('FENCEMISSING the write carries no fencing token')
end
if not string.find(token, '^[1-9][0-9]*$') or #token > 19 or wide(token) > '9223372036854775807' then
  return redis.error_reply('FENCEMALFORMED the fencing token is not a decimal number from 1 to 2^63-1 without sign, space or leading zero')
end
local mark = redis.call('GET', KEYS[1]) or '0'
if mark ~= '0' and (not string.find(mark, '^[1-9][0-9]*$') or #mark > 19) then
  return redis.error_reply('FENCEMARK the mark in ' .. KEYS[1] .. ' is not a token: set it to the highest token that was ever accepted')
end
if wide(token) < wide(mark) then
  return redis.error_reply('FENCESTALE ' .. mark)
end
if mode == 'strict' and token ~= mark then
  return redis.error_reply('FENCEAHEAD ' .. mark)
end
if token ~= mark then
  redis.call('SET', KEYS[1], token)
end
table.remove(KEYS, 1)
table.remove(ARGV, 1)
table.remove(ARGV, 1)
