# The keeper of one throwaway server. It outlives the process that owns the server and clears up
# after it, however that process ended: its standard input is a pipe whose other end only the owner
# holds, so the loop below ends when the owner does.
#
# $1 is the server's folder. On the pipe comes the process id to stop, anew whenever it changes; 0
# means that there is nothing to stop.
trap '' HUP INT QUIT TERM
dir=$1
pid=0
while read -r line; do pid=$line; done

if [ "$pid" -gt 0 ]; then
	kill -QUIT "$pid" 2>/dev/null # immediate shutdown: the data are thrown away
	tries=0
	while kill -0 "$pid" 2>/dev/null; do
		tries=$((tries + 1))
		if [ "$tries" -ge 100 ]; then
			kill -KILL "$pid" 2>/dev/null
			break
		fi
		sleep 0.1
	done
fi

# An initdb whose owner was killed may still be writing, which makes rm fail.
tries=0
until rm -rf "$dir" 2>/dev/null || [ "$tries" -ge 100 ]; do
	tries=$((tries + 1))
	sleep 0.1
done
