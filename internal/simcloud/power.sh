#!/bin/sh
# Turns this machine off, and nothing else. A restart turns it off too.
off() { echo off >'@DIR@/power'; }
case "${0##*/}" in
systemctl)
	case "$1" in
	poweroff | halt | reboot) off ;;
	*) echo "systemctl $1: there is no init system on this machine" >&2; exit 1 ;;
	esac
	;;
shutdown)
	delay=60
	for word; do
		case "$word" in
		-c) [ -f '@DIR@/shutdown' ] && kill "$(cat '@DIR@/shutdown')"; rm -f '@DIR@/shutdown'; exit 0 ;;
		now) delay=0 ;;
		+[0-9]*) delay=$((${word#+} * 60)) ;;
		esac
	done
	if [ "$delay" -gt 0 ]; then
		(sleep "$delay"; off) </dev/null >/dev/null 2>&1 &
		echo $! >'@DIR@/shutdown'
		exit 0
	fi
	off
	;;
*) off ;;
esac
