#!/bin/sh
# The first process of a simcloud machine. It runs the user data once and then
# stays, as a machine does whose user data has ended, reaping what is orphaned.
# In a namespace of its own ("namespace" as first word) it also takes away the
# ways in which a process could reach the host's power.
if [ "$1" = namespace ]; then
	mount -t proc proc /proc || exit 97
	mount --bind /dev/null /proc/sysrq-trigger 2>/dev/null
	done=
	for dir in /sbin /usr/sbin /bin /usr/bin; do
		for name in poweroff halt reboot shutdown systemctl; do
			[ -e "$dir/$name" ] || continue
			real=$(readlink -f "$dir/$name")
			case " $done " in *" $real "*) continue ;; esac
			mount --bind "$HOME/bin/$name" "$real" && done="$done $real"
		done
	done
else
	# Without a namespace: when simcloud dies, its end of file 3 closes, and
	# the process group goes with it.
	(read -r _ <&3; kill -9 -$$) &
fi
[ "$2" = probe ] && exit 0
cd "$HOME" || exit 98
(
	exec 3<&-
	case $(head -c 2 user-data) in
	'#!') ./user-data ;;
	*) /bin/sh ./user-data ;;
	esac
	echo "simcloud: the user data ended with exit code $?"
) </dev/null &
exec </dev/null
while :; do
	sleep 86400 &
	wait
done
