-- One key: the part before is not within a function, which makes it faster.
return time[1] .. ' ' .. time[2] .. ' ' .. reply
